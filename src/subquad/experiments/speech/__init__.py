"""Speech by CTC: error rates and costs of softmax, linear, LSH and a bidirectional LSTM (Katharopoulos et al. 2020)."""
