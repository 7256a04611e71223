"""The copy task: linear attention converges like softmax, in linear time, and faster (Katharopoulos et al. 2020)."""
