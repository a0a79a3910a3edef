// Package cudatest builds the stand-in for the CUDA driver that lies in driver/cuda/testdata and runs tests on it, with
// no GPU.
//
// The driver's library is loaded once in a process, so [Start] has to come before the first CUDA call, and all tests of
// a package share one configuration:
//
//	func TestX(t *testing.T) {
//		fake := cudatest.Start(t, cudatest.Options{Devices: 2})
//		fake.Leaks(t)
//		dev, err := cuda.Open("0")
//
// Programs that the tests start inherit the library by environment variables; [Options.Env] gives them for a program
// that is to see another configuration.
//
// There has to be a C compiler (cc, or what CC names). Without one the tests that need the library skip and say so,
// unless SHAREDTENSOR_REQUIRE_CC=1 is set, which makes them fail.
package cudatest
