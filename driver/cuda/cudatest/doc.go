// Package cudatest builds a stand-in for the CUDA driver from embedded C sources and runs tests on it, without a GPU.
// It works in tests of any module.
//
// A process loads the driver's library once, so [Start] must precede the first CUDA call, and all tests of a package
// share one configuration:
//
//	func TestAlloc(t *testing.T) {
//		fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
//		fake.Leaks(t)
//		dev, err := cuda.Open(0)
//		if err != nil {
//			t.Fatal(err)
//		}
//		defer dev.Close()
//		if _, err := dev.AllocMemory(128 << 20); !errors.Is(err, driver.ErrOutOfMemory) {
//			t.Fatal(err)
//		}
//	}
//
// Programs that the tests start inherit the library through environment variables. [Options.Env] returns the variables
// for a program that needs another configuration.
//
// The package needs a C compiler (cc, or the value of CC). Without one, tests that need the library are skipped, or
// fail if SHAREDTENSOR_REQUIRE_CC=1 is set.
package cudatest
