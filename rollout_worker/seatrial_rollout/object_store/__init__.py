"""Objects in S3 and what speaks its protocol: for run storage, and for models and task sets that lie there."""
