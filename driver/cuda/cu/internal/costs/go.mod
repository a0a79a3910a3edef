module github.com/sharedtensor/sharedtensor/driver/cuda/cu/internal/costs

go 1.25.0

require github.com/sharedtensor/sharedtensor v0.0.0

require github.com/ebitengine/purego v0.11.3 // indirect

replace github.com/sharedtensor/sharedtensor => ../../../../..
