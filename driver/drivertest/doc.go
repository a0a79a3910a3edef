// Package drivertest is the conformance suite for every [driver.Device], and the leak counters for tests of all
// packages.
//
// [TestDevice] runs the suite. Sharing is tested between real processes: the suite starts the test binary a second
// time, as a peer, and passes handles to and from it over a Unix socket. A package that calls TestDevice therefore
// passes its main test function to [Main]:
//
//	func TestMain(m *testing.M) { drivertest.Main(m, open) }
//
//	func TestDevice(t *testing.T) { drivertest.TestDevice(t, open) }
//
// [Leaks] records the descriptors, shared mappings and goroutines of the process and fails the test if more are left at
// its end.
package drivertest
