"""What watches a training and changes nothing of it: metrics, gauges, watchdog, advice on memory."""
