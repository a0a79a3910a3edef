// Package gpu contains only tests. They run the suites of this module on a real GPU and answer questions about the
// driver that its documentation leaves open. FACTS.md lists the answers.
//
//	GPU_TEST=require go test ./gpu_test   requires a GPU; a test that skips fails
//	GPU_TEST=fake go test ./gpu_test      uses the stand-in for the driver, to test these tests
//	go test ./gpu_test                    uses a GPU if there is one; otherwise every test skips with the reason
//
// For a machine with a GPU but without Go or a network, gpu_test/build compiles all suites into one file,
// gpu_test/bin/gpu-test. It runs them and writes a report and FACTS.md; see gpu_test/suites. Each fact is printed on a
// separate line, "FACT name: value". To copy the facts of a log into FACTS.md, use
//
//	go test ./gpu_test -run '^TestFactsFile$' -facts LOG
package gpu
