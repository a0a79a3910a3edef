module example.com/fakegpu

go 1.25.0

require github.com/sharedtensor/sharedtensor v0.0.0

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/sharedtensor/sharedtensor => ../..
