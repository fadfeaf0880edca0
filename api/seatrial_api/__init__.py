"""The Seatrial API: CRD models, records, stages and metric names."""
