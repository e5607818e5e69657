"""Measurements of cost: training, inference, start-up, memory and serving."""
