"""Images written pixel by pixel: quality, and images a second with a state against recomputing (Katharopoulos 2020)."""
