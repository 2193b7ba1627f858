"""Training with the Trainer of Hugging Face's transformers: a tiny BERT, made on the spot."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main(folder: str) -> dict[str, Any]:
    """Train for an epoch with checkpoints in `folder`; what every process has in the end."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    data: Any = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=2,
        save_strategy="epoch",
        ddp_find_unused_parameters=False,
        seed=1,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    result = trainer.train()
    return {
        "loss": float(result.training_loss),
        "parameters": sum(float(parameter.sum()) for parameter in model.parameters()),
        "steps": result.global_step,
        "processes": arguments.world_size,
    }
