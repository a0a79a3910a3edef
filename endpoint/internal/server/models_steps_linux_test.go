package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/persist"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// errFault is the error of calls that a test makes fail.
var errFault = errors.New("a fault of the test")

// faults makes a call fail: at is the number of earlier calls with the name that succeed.
type faults struct {
	call string
	at   int
}

func (f *faults) reach(call string) error {
	if f.call != call {
		return nil
	}
	if f.at--; f.at >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", call, errFault)
}

// faultyDevice is host memory whose calls can fail.
type faultyDevice struct {
	driver.Device
	*faults
}

func (d faultyDevice) Synchronize() error { return d.reach("synchronize") }

func (d faultyDevice) Alloc(bytes int64) (driver.Memory, error) {
	mem, err := d.Device.Alloc(bytes)
	return d.wrap(mem, err)
}

func (d faultyDevice) Import(h driver.Handle, opts driver.ImportOptions) (driver.Memory, error) {
	if err := d.reach("import"); err != nil {
		return nil, err
	}
	mem, err := d.Device.Import(h, opts)
	return d.wrap(mem, err)
}

func (d faultyDevice) wrap(mem driver.Memory, err error) (driver.Memory, error) {
	if err != nil {
		return nil, err
	}
	return faultyMemory{mem, d}, nil
}

type faultyMemory struct {
	driver.Memory
	dev faultyDevice
}

func (m faultyMemory) Device() driver.Device { return m.dev }

func (m faultyMemory) Freeze() error {
	if err := m.dev.reach("freeze"); err != nil {
		return err
	}
	return m.Memory.Freeze()
}

func (m faultyMemory) Export() (driver.Handle, error) {
	if err := m.dev.reach("export"); err != nil {
		return driver.Handle{}, err
	}
	return m.Memory.Export()
}

// faultyStore is a store whose Put can fail.
type faultyStore struct {
	*persist.Files
	*faults
}

func (s faultyStore) Put(name string, f *os.File) error {
	if err := s.reach("put"); err != nil {
		return err
	}
	return s.Files.Put(name, f)
}

// stepsTest is a server with a store and memory that can fail.
type stepsTest struct {
	*modelServer
	*faults
	store faultyStore
}

// newStepsTest returns a server that has adopted the versions in files.
func newStepsTest(t *testing.T, files *persist.Files, f *faults) *stepsTest {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	faulty := faultyDevice{dev, f}
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Devices: []driver.Device{faulty}, Retain: catalog.Retention{Versions: 2}})
	require.NoError(t, err)
	return &stepsTest{&modelServer{Server: s, dev: faulty}, f, faultyStore{files, f}}
}

// close frees everything that the server and its device have.
func (s *stepsTest) close(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Close())
	require.NoError(t, s.dev.(faultyDevice).Device.Close())
}

// pair returns a state dict of two storages with the given bytes.
func (s *stepsTest) pair(t *testing.T, value byte) *module.StateDict {
	t.Helper()
	sd := module.NewStateDict()
	for _, name := range []string{"a", "b"} {
		x, err := tensor.FromSlice(s.dev, tensor.Shape{4}, []uint8{value, 1, 2, 3})
		require.NoError(t, err)
		require.NoError(t, sd.Set(name, x))
	}
	return sd
}

// receive publishes as a client in another process does.
func (s *stepsTest) receive(t *testing.T, p Publication) error {
	t.Helper()
	defer func() { require.NoError(t, p.StateDict.Close()) }()
	if err := module.Freeze(p.StateDict); err != nil {
		return err
	}
	out, err := transfer.NewExport(p.StateDict)
	if err != nil {
		return err
	}
	defer out.Close()
	files, err := wire.FilesOf(out.Files)
	require.NoError(t, err)
	defer files.Close()
	body, err := message.MarshalPayload(message.Publish{
		Name: p.Name, Manifest: *out.Columns, Handles: out.Handles, Digests: p.Digests, After: p.After, Current: p.Current,
	})
	require.NoError(t, err)
	_, err = (&modelOperations{s.Models}).publish(t.Context(), &session.Request{Session: s.Sessions.Self(), Op: message.OpPublish, ID: 1, Body: body, Files: files})
	return err
}

// state must be the same after a failed publication.
type state struct {
	versions map[string][]uint64
	use      Usage
	jobs     int      // of digests, waiting and running
	live     []string // in the journal
}

func (s *stepsTest) state() state {
	m := s.Models
	now := state{versions: map[string][]uint64{}}
	for _, info := range m.Catalog.List() {
		for _, v := range info.Versions {
			now.versions[info.Name] = append(now.versions[info.Name], v.Version)
		}
	}
	now.use, _ = m.Use()
	m.digests.mu.Lock()
	if now.jobs = len(m.digests.queue); m.digests.current != nil {
		now.jobs++
	}
	m.digests.mu.Unlock()
	now.live = m.keeping.Names()
	slices.Sort(now.live)
	return now
}

// entriesOf returns the names in a store, sorted.
func entriesOf(t *testing.T, files *persist.Files) []string {
	t.Helper()
	all, err := files.Stored()
	require.NoError(t, err)
	defer persist.CloseFiles(all)
	return slices.Sorted(maps.Keys(all))
}

// stepFailures are the ways in which the steps of a publication fail, in their order.
var stepFailures = map[string]struct {
	faults
	begin  func(s *stepsTest, p *Publication) // makes it fail, beside faults
	end    func(s *stepsTest)                 // undoes begin; nil if a later publication need not succeed
	only   string                             // kind of publication; empty for all that are not rolled back
	rolled bool                               // also of a rollback
}{
	"name":      {begin: func(_ *stepsTest, p *Publication) { p.Name = "a/../b" }},
	"number":    {begin: func(_ *stepsTest, p *Publication) { p.After = catalog.MaxAfter + 1 }},
	"source":    {begin: func(_ *stepsTest, p *Publication) { p.SourceID = "\xff" }, only: "own"},
	"condition": {begin: func(_ *stepsTest, p *Publication) { p.Current = new(uint64); *p.Current = 77 }},
	"charge": {only: "client", begin: func(s *stepsTest, _ *Publication) { s.Models.Limits.Publish.Storages = 1 }, end: func(s *stepsTest) {
		s.Models.Limits.Publish.Storages = s.Limits.Publish.Storages
	}},
	"first import":  {faults: faults{call: "import"}, only: "client"},
	"second import": {faults: faults{call: "import", at: 1}, only: "client"},
	"a successor serves": {rolled: true, begin: func(s *stepsTest, _ *Publication) { s.Models.changes.left = true }, end: func(s *stepsTest) {
		s.Models.changes.left = false
	}},
	"closed": {only: "own", begin: func(_ *stepsTest, p *Publication) {
		sd := p.StateDict
		p.StateDict = sd.Alias()
		_ = p.StateDict.Close()
		_ = sd.Close()
	}},
	"device":        {faults: faults{call: "synchronize"}, rolled: true},
	"freeze":        {faults: faults{call: "freeze", at: 1}, rolled: true},
	"first export":  {faults: faults{call: "export"}, rolled: true},
	"second export": {faults: faults{call: "export", at: 1}, rolled: true},
	"first file":    {faults: faults{call: "put"}, rolled: true},
	"second file":   {faults: faults{call: "put", at: 1}, rolled: true},
	"files of a frame": {rolled: true, begin: func(s *stepsTest, _ *Publication) { s.Models.Limits.Wire.Files = 1 }, end: func(s *stepsTest) {
		s.Models.Limits.Wire.Files = 0
	}},
	"size of a frame": {rolled: true, begin: func(s *stepsTest, _ *Publication) { s.Models.Limits.Wire.Frame = 64 }, end: func(s *stepsTest) {
		s.Models.Limits.Wire.Frame = 0
	}},
	"journal":        {faults: faults{call: "journal write"}, rolled: true},
	"closed catalog": {rolled: true, begin: func(s *stepsTest, _ *Publication) { s.Models.Leave(); _ = s.Models.Catalog.Close() }},
}

// withFaults makes calls of the process fail.
func withFaults(t *testing.T, f *faults) {
	before := status.Fault
	status.Fault = f.reach
	t.Cleanup(func() { status.Fault = before })
}

// A publication that fails at any step leaves nothing: no descriptor, mapping, charge, digest job, entry of the store or of
// the journal, and the versions as they were. A later one succeeds.
func TestPublicationFailsAtEachStep(t *testing.T) {
	drivertest.Leaks(t)
	for _, kind := range []string{"own", "client", "rollback"} {
		for _, replaced := range []bool{false, true} {
			for step, c := range stepFailures {
				if c.only != "" && c.only != kind || kind == "rollback" && !(c.rolled && replaced) || kind == "client" && c.call == "export" {
					continue
				}
				t.Run(fmt.Sprintf("%s replaced=%v %s", kind, replaced, step), func(t *testing.T) {
					f := new(faults)
					withFaults(t, f)
					before := drivertest.TakeSnapshot()
					files := new(persist.Files)
					s := newStepsTest(t, files, f)
					s.heldDigests()
					_, err := s.Models.Adopt(s.store)
					require.NoError(t, err)
					own := func(p Publication) error {
						_, err := s.Models.Publish(t.Context(), p)
						return err
					}
					publish := map[string]func(Publication) error{
						"own": own, "client": func(p Publication) error { return s.receive(t, p) },
						"rollback": func(p Publication) error {
							require.NoError(t, p.StateDict.Close())
							_, err := s.Models.Rollback(t.Context(), "m", 1, catalog.Holder{}, 9)
							return err
						},
					}[kind]
					if replaced {
						require.NoError(t, own(Publication{Name: "m", StateDict: s.pair(t, 1), Digests: true})) // its job runs until the end
						require.NoError(t, own(Publication{Name: "m", StateDict: s.pair(t, 2), Digests: true}))
					}
					p := Publication{Name: "m", StateDict: s.pair(t, 3), Digests: true}
					was, entries := s.state(), entriesOf(t, files)
					if c.begin != nil {
						c.begin(s, &p)
					}
					*f = c.faults
					require.Error(t, publish(p))
					require.True(t, c.call == "" || f.at < 0, "the step was not reached")
					*f = faults{}
					if c.end != nil {
						c.end(s)
					}
					if step != "closed catalog" {
						require.Equal(t, was, s.state())
						require.Eventually(t, func() bool { return slices.Equal(entries, entriesOf(t, files)) }, 10*time.Second, time.Millisecond, "entries of the store")
						require.NoError(t, publish(Publication{Name: "m", StateDict: s.pair(t, 4), Digests: true}))
					}
					s.close(t)
					require.NoError(t, files.Close())
					require.Empty(t, before.WaitNone(10*time.Second))
				})
			}
		}
	}
}

// A publication whose caller leaves at the gate leaves nothing.
func TestPublicationIsCancelled(t *testing.T) {
	drivertest.Leaks(t)
	s := newStepsTest(t, new(persist.Files), new(faults))
	_, err := s.Models.Adopt(s.store)
	require.NoError(t, err)
	was := s.state()
	require.NoError(t, s.Models.changes.close(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Models.Publish(ended, Publication{Name: "m", StateDict: s.pair(t, 1)})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, was, s.state())
	s.Models.changes.open(false)
	s.close(t)
	require.NoError(t, s.store.Close())
}

// An owner that fails to adopt a version at any step lists it, and leaves its memory and its entry in the journal to the
// next owner.
func TestAdoptionFailsAtEachStep(t *testing.T) {
	drivertest.Leaks(t)
	for step, c := range stepFailures {
		if c.call == "put" || c.call == "journal write" || c.begin != nil && step != "files of a frame" && step != "size of a frame" {
			continue // adoption does not do that
		}
		t.Run(step, func(t *testing.T) {
			f := new(faults)
			withFaults(t, f)
			before := drivertest.TakeSnapshot()
			files := new(persist.Files)
			owner := newStepsTest(t, files, f)
			_, err := owner.Models.Adopt(owner.store)
			require.NoError(t, err)
			for value := range byte(2) {
				_, err := owner.Models.Publish(t.Context(), Publication{Name: "m", StateDict: owner.pair(t, 10+value)})
				require.NoError(t, err)
			}
			owner.close(t)
			entries := entriesOf(t, files)

			next := newStepsTest(t, files, f)
			if c.begin != nil {
				c.begin(next, new(Publication))
			}
			if *f = c.faults; f.call != "" {
				f.at += 2 * boolInt(c.call != "synchronize") // of the second version
			}
			_, err = next.Models.Adopt(next.store)
			require.NoError(t, err)
			require.True(t, c.call == "" || f.at < 0, "the step was not reached")
			*f = faults{}
			require.NotEmpty(t, next.Models.NotAdopted())
			next.close(t)
			require.Equal(t, entries, entriesOf(t, files))

			last := newStepsTest(t, files, f)
			adopted, err := last.Models.Adopt(last.store)
			require.NoError(t, err)
			require.Len(t, adopted, 2)
			require.Empty(t, last.Models.NotAdopted())
			lease, err := last.Models.Catalog.Acquire("m", 2, catalog.Holder{ID: 1})
			require.NoError(t, err)
			got := make([]byte, 4)
			x, _ := lease.StateDict().Get("a")
			_, err = x.Storage().Memory().ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, []uint8{11, 1, 2, 3}, got)
			last.close(t)
			require.NoError(t, files.Close())
			require.Empty(t, before.WaitNone(10*time.Second))
		})
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A rollback is charged like the publication of the same version by a client: with all memory of its descriptors, also
// that outside of its tensors, and with the digests that the owner computes.
func TestRollbackCharge(t *testing.T) {
	t.Parallel()
	for _, digests := range []bool{false, true} {
		s := newStepsTest(t, new(persist.Files), new(faults))
		charged := func(session uint64) Usage {
			s.Models.quotas.mu.Lock()
			defer s.Models.quotas.mu.Unlock()
			return *s.Models.quotas.by[session]
		}
		publish := func(name string, value byte) Publication {
			return Publication{Name: name, StateDict: s.pair(t, value), Digests: digests}
		}
		require.NoError(t, s.receive(t, publish("m", 1)))
		want := charged(s.Sessions.Self().ID)
		require.Greater(t, want.Bytes, int64(8), "the descriptors have more memory than the tensors")
		require.NoError(t, s.receive(t, publish("m", 2)))
		_, err := s.Models.Rollback(t.Context(), "m", 1, catalog.Holder{}, 9)
		require.NoError(t, err)
		require.Equal(t, want, charged(9), "of a version of a client")

		for value := range byte(2) {
			_, err := s.Models.Publish(t.Context(), publish("own", value))
			require.NoError(t, err)
		}
		_, err = s.Models.Rollback(t.Context(), "own", 1, catalog.Holder{}, 8)
		require.NoError(t, err)
		require.Equal(t, want.Manifests, charged(8).Manifests, "of a version of the server's own process")
		s.close(t)
	}
}
