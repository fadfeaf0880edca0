"""Harbor environments over our sandboxes."""
