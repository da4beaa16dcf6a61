"""Retrieval evaluation: exact neighbours, relevance, metrics of every query, statistics."""

from weiss.evaluation.retrieval import (
    Retrieval,
    RetrievalOptions,
    concatenate_embeddings,
    evaluate_retrieval,
    retrieval_metrics,
)

__all__ = [
    "Retrieval",
    "RetrievalOptions",
    "concatenate_embeddings",
    "evaluate_retrieval",
    "retrieval_metrics",
]
