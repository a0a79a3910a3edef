// Package gpu has no code: its tests run the suites of this module on a real GPU and answer questions about the driver
// that no documentation answers. The answers are in FACTS.md.
//
//	GPU_TEST=require go test ./gpu_test   a GPU has to be there; a skip is a failure
//	GPU_TEST=fake go test ./gpu_test      the stand-in for the driver, to test these tests
//	go test ./gpu_test                    a GPU if there is one; otherwise every test skips and says why
//
// For a machine with a GPU and neither Go nor a network, gpu_test/build compiles everything into gpu_test/bin, which
// gpu_test/bin/run runs there. Each fact is printed as a line of its own, "FACT name: value", and
//
//	go test ./gpu_test -run '^TestFactsFile$' -facts LOG
//
// puts the lines of a log into FACTS.md.
package gpu
