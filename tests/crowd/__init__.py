"""Many sales from the request to the outcome, beside the truth of the service that decided them."""
