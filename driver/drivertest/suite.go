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

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Option changes the expectations of [TestDevice].
type Option func(*options)

type options struct {
	elsewhere bool
	ignore    []string
	peerEnv   []string
}

// ImportElsewhere is for a device that cannot import what the same process exported. Imports are then tested in a
// second process only.
func ImportElsewhere() Option { return func(o *options) { o.elsewhere = true } }

// IgnoreLeaks excludes descriptors, mappings and goroutines whose description contains one of the parts, which must not
// contain spaces. It is for resources that a vendor's library keeps.
func IgnoreLeaks(parts ...string) Option {
	return func(o *options) { o.ignore = append(o.ignore, parts...) }
}

// PeerEnv adds variables, as "name=value", to the environment of the second process.
func PeerEnv(variables ...string) Option {
	return func(o *options) { o.peerEnv = append(o.peerEnv, variables...) }
}

// TestDevice runs the conformance suite. open returns a device owned by the suite and is called once for each subtest;
// it may skip the test if there is no such device. The package's TestMain must call [Main]. Each subtest counts
// descriptors, shared mappings and goroutines of both processes before and after.
func TestDevice(t *testing.T, open func(testing.TB) driver.Device, opts ...Option) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	dev := open(t) // a vendor's library opens its descriptors before they are counted
	require.NoError(t, warmUp(dev))
	require.NoError(t, dev.Close())
	for _, test := range []struct {
		name string
		run  func(*testing.T, *env)
	}{
		{"Info", testInfo},
		{"Sizes", testSizes},
		{"RefusedSizes", testRefusedSizes},
		{"Ranges", testRanges},
		{"AddressedMemory", testAddressed},
		{"Load", testLoad},
		{"LoadErrors", testLoadErrors},
		{"ConcurrentCopies", testConcurrentCopies},
		{"CloseDuringCopies", testCloseDuringCopies},
		{"SealDuringLoad", testSealDuringLoad},
		{"SealDuringWrites", testSealDuringWrites},
		{"CloseDuringPin", testCloseDuringPin},
		{"UnpinTwice", testUnpinTwice},
		{"ForgottenMemory", testForgottenMemory},
		{"SliceOutlivesCollection", testSliceOutlivesCollection},
		{"UseAfterClose", testUseAfterClose},
		{"DeviceClose", testDeviceClose},
		{"Export", testExport},
		{"Share", onEveryImporter(testShare)},
		{"ShareSizes", onEveryImporter(testShareSizes)},
		{"SharePart", onEveryImporter(testSharePart)},
		{"ShareWritable", onEveryImporter(testShareWritable)},
		{"ImportOutlivesExporter", onEveryImporter(testImportOutlivesExporter)},
		{"Reexport", onEveryImporter(testReexport)},
		{"Freeze", onEveryImporter(testFreeze)},
		{"ForgedHandles", onEveryImporter(testForged)},
		{"WrongDescriptors", onEveryImporter(testWrongDescriptors)},
		{"ConcurrentShares", onEveryImporter(testConcurrentShares)},
		{"OwnerKilled", testOwnerKilled},
		{"ImporterKilled", testImporterKilled},
	} {
		t.Run(test.name, func(t *testing.T) {
			Leaks(t, o.ignore...)
			e := &env{Device: open(t), options: o}
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			test.run(t, e)
		})
	}
}

// warmUp calls every method of the device once.
func warmUp(dev driver.Device) error {
	m, err := dev.Alloc(1)
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.WriteAt([]byte{1}, 0); err != nil {
		return err
	}
	h, err := m.Export()
	if err != nil {
		return err
	}
	return h.Close()
}

// env holds the device and the peer of a subtest.
type env struct {
	driver.Device
	options options
}

// onEveryImporter runs a test with this process as the importer, if the device supports it, and with a second one.
func onEveryImporter(run func(*testing.T, *env, process)) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		if !e.options.elsewhere {
			t.Run("SameProcess", func(t *testing.T) { run(t, e, local{e.Device}) })
		}
		t.Run("OtherProcess", func(t *testing.T) { run(t, e, startPeer(t, e.options)) })
	}
}

// alloc returns memory that is closed with the test.
func (e *env) alloc(t *testing.T, bytes int64) driver.Memory {
	t.Helper()
	m, err := e.Alloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// filled returns memory with a pattern that is closed with the test, and the pattern.
func (e *env) filled(t *testing.T, bytes int64, seed byte) (driver.Memory, []byte) {
	t.Helper()
	m := e.alloc(t, bytes)
	data := pattern(int(bytes), seed)
	write(t, m, data)
	return m, data
}

// export returns a handle that is closed with the test.
func export(t *testing.T, m memory) driver.Handle {
	t.Helper()
	h, err := m.Export()
	require.NoError(t, err)
	if d, ok := m.(driver.Memory); ok {
		described, err := d.Handle()
		require.NoError(t, err)
		want := h
		want.File = nil
		require.Equal(t, want, described)
	}
	t.Cleanup(func() { _ = h.Close() }) // the test may have closed it
	return h
}

// imported returns memory that is closed with the test.
func imported(t *testing.T, p process, h driver.Handle, opts driver.ImportOptions) memory {
	t.Helper()
	m, err := p.importHandle(h, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if other, ok := p.(*peer); ok && other.killed {
			return
		}
		require.NoError(t, m.Close())
	})
	return m
}

func write(t *testing.T, m memory, data []byte) {
	t.Helper()
	n, err := m.WriteAt(data, 0)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

// requireBytes compares the whole memory with want.
func requireBytes(t *testing.T, m memory, want []byte) {
	t.Helper()
	require.Equal(t, int64(len(want)), m.Bytes())
	got := make([]byte, len(want))
	n, err := m.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	if string(got) != string(want) { // avoids a diff of megabytes
		i := 0
		for got[i] == want[i] {
			i++
		}
		t.Fatalf("byte %d of %d is %d, not %d", i, len(want), got[i], want[i])
	}
}

// pattern returns bytes that differ between seeds and between pages.
func pattern(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return data
}
