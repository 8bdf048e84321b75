"""Room of Shadow: its command, its gate and its pages."""
