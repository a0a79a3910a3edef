package cuda_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// owner is a process that owns legacy memory and an event, and executes commands, one for each line.
type owner struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	handle [64]byte // of an allocation of 3 MiB whose content begins with "owner"
	event  [64]byte
	offset int64
}

const ownerVariable = "SHAREDTENSOR_TEST_OWNER"

func startOwner(t *testing.T) *owner {
	t.Helper()
	o := &owner{cmd: selfCommand("-test.run=^TestOwnerProcess$")}
	o.cmd.Env = append(os.Environ(), ownerVariable+"=1")
	o.cmd.Stderr = os.Stderr
	var err error
	o.in, err = o.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := o.cmd.StdoutPipe()
	require.NoError(t, err)
	o.out = bufio.NewScanner(out)
	require.NoError(t, o.cmd.Start())
	t.Cleanup(func() {
		o.in.Close()
		o.cmd.Wait() // also if it was killed
	})
	line := o.line(t)
	var memory, event []byte
	_, err = fmt.Sscanf(line, "%x %x %d", &memory, &event, &o.offset)
	require.NoError(t, err, line)
	o.handle, o.event = [64]byte(memory), [64]byte(event)
	return o
}

func (o *owner) line(t *testing.T) string {
	t.Helper()
	require.True(t, o.out.Scan(), "the owner ended")
	return o.out.Text()
}

func (o *owner) tell(t *testing.T, what string) {
	t.Helper()
	_, err := fmt.Fprintln(o.in, what)
	require.NoError(t, err)
	require.Equal(t, "done "+what, o.line(t))
}

// This is the owner's process, which other tests start.
func TestOwnerProcess(t *testing.T) {
	if os.Getenv(ownerVariable) == "" {
		t.Skip("runs as the second process of other tests")
	}
	d, err := cuda.Open(0)
	require.NoError(t, err)
	m, err := d.AllocLegacy(3 << 20)
	require.NoError(t, err)
	_, err = m.WriteAt([]byte("owner"), 0)
	require.NoError(t, err)
	e, err := d.NewEvent(cuda.EventOptions{Interprocess: true})
	require.NoError(t, err)
	s, err := d.NewStream(cuda.StreamOptions{})
	require.NoError(t, err)
	handle, offset, err := d.IPCHandle(m.Pointer() + 77)
	require.NoError(t, err)
	event, err := e.IPCHandle()
	require.NoError(t, err)
	fmt.Printf("%s %s %d\n", hex.EncodeToString(handle[:]), hex.EncodeToString(event[:]), offset)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "free":
			require.NoError(t, m.Close())
		case "work": // asynchronous; the event marks its end
			require.NoError(t, s.Fill8(m, 0, 5, 'w'))
			require.NoError(t, e.Record(s))
		}
		fmt.Println("done", in.Text())
	}
	os.Exit(0)
}

func TestLegacyIPC(t *testing.T) {
	d := openDevice(t, 0)
	fake := startFake(t)
	o := startOwner(t)
	require.EqualValues(t, 77, o.offset, "a handle is of the whole allocation")

	first, err := d.OpenIPC(o.handle)
	require.NoError(t, err)
	second, err := d.OpenIPC(o.handle)
	require.NoError(t, err, "the driver opens a handle once, and the table counts")
	require.EqualValues(t, 3<<20, first.Bytes())
	require.Equal(t, first.Pointer(), second.Pointer())
	place, err := first.Describe()
	require.NoError(t, err)
	same, err := second.Describe()
	require.NoError(t, err)
	require.Equal(t, place, same, "a copy between the two can tell that they overlap")
	require.EqualValues(t, 1, fake.Live()["ipc"])
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	got := make([]byte, 5)
	_, err = second.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "owner", string(got))

	h := driver.Handle{Kind: driver.CUDAIPC, Device: d.Info().UUID, Bytes: 3, Offset: 2, Blob: o.handle[:]}
	part, err := d.Import(h, driver.ImportOptions{Writable: true})
	require.NoError(t, err)
	_, err = part.WriteAt([]byte("NER"), 0)
	require.NoError(t, err)
	_, err = second.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "owNER", string(got))
	h.Offset, h.Bytes = 3<<20-2, 3
	_, err = d.Import(h, driver.ImportOptions{})
	require.ErrorIs(t, err, driver.ErrHandle)
	require.NoError(t, part.Close())
	require.NoError(t, second.Close())
	require.Zero(t, fake.Live()["ipc"])

	// The handle can be opened again after Close.
	again, err := d.OpenIPC(o.handle)
	require.NoError(t, err)
	require.NoError(t, again.Close())

	o.tell(t, "free")
	_, err = d.OpenIPC(o.handle)
	require.ErrorIs(t, err, driver.ErrHandle)
	require.ErrorIs(t, err, cuda.ErrPeerGone)
}

// Contexts do not share the opening of a handle: an address is valid in the context that opened it, until it closes it.
func TestContextsDoNotShareAnOpenHandle(t *testing.T) {
	d, far := openDevice(t, 0), openDevice(t, 1)
	fake := startFake(t)
	o := startOwner(t)
	all, err := d.Multiprocessors()
	require.NoError(t, err)
	green, err := all.NewContext()
	keep(t, green, err)
	second, err := cuda.Open(0)
	keep(t, second, err)

	first, err := d.OpenIPC(o.handle)
	require.NoError(t, err)
	same, err := second.OpenIPC(o.handle)
	require.NoError(t, err, "the device has the same context")
	require.Equal(t, first.Pointer(), same.Pointer())
	_, err = green.OpenIPC(o.handle)
	require.ErrorIs(t, err, driver.ErrHandle, "the driver allows one context of a device")
	peer, err := far.OpenIPC(o.handle)
	require.NoError(t, err, "another device has its own opening")
	require.NotEqual(t, first.Pointer(), peer.Pointer())
	require.EqualValues(t, 2, fake.Live()["ipc"])
	require.NoError(t, first.Close())
	require.NoError(t, same.Close())
	require.EqualValues(t, 1, fake.Live()["ipc"])
	got := make([]byte, 5)
	_, err = peer.ReadAt(got, 0)
	require.NoError(t, err, "closing the opening of one device leaves that of another")
	require.Equal(t, "owner", string(got))
	mine, err := green.OpenIPC(o.handle)
	require.NoError(t, err, "the other context has closed it")
	require.NoError(t, mine.Close())
	require.NoError(t, peer.Close())
}

func TestLegacyIPCOfDeadOwner(t *testing.T) {
	d := openDevice(t, 0)
	o := startOwner(t)
	require.NoError(t, o.cmd.Process.Kill())
	_, _ = o.cmd.Process.Wait()
	_, err := d.OpenIPC(o.handle)
	require.ErrorIs(t, err, cuda.ErrPeerGone)
	_, err = d.OpenEvent(o.event)
	require.ErrorIs(t, err, cuda.ErrPeerGone)
}

func TestForgedIPCHandles(t *testing.T) {
	d := openDevice(t, 0)
	m, err := d.AllocLegacy(100)
	keep(t, m, err)
	h, err := m.Export()
	require.NoError(t, err)
	_, err = d.Import(h, driver.ImportOptions{})
	require.ErrorIs(t, err, driver.ErrHandle, "a handle of the same process")
	require.NotErrorIs(t, err, cuda.ErrPeerGone)
	for i := range h.Blob {
		forged := h
		forged.Blob = append([]byte(nil), h.Blob...)
		forged.Blob[i] ^= 1
		_, err = d.Import(forged, driver.ImportOptions{})
		require.ErrorIs(t, err, driver.ErrHandle)
	}
	shared := alloc(t, d, 10)
	_, _, err = d.IPCHandle(shared.Pointer())
	require.Error(t, err, "virtual memory has no legacy handle")
	_, _, err = d.IPCHandle(1)
	require.Error(t, err)
}

// The device can wait for work of another process.
func TestEventsBetweenProcesses(t *testing.T) {
	d := openDevice(t, 0)
	o := startOwner(t)
	m, err := d.OpenIPC(o.handle)
	keep(t, m, err)
	e, err := d.OpenEvent(o.event)
	keep(t, e, err)
	s, h := newStream(t, d), host(t, d, 5)
	o.tell(t, "work")
	require.NoError(t, s.Wait(e))
	require.NoError(t, s.CopyToHost(h, 0, m, 0, 5))
	require.NoError(t, s.Synchronize())
	require.Equal(t, "wwwww", string(h.Data()))
	require.NoError(t, e.Synchronize())
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done)

	mine, err := d.NewEvent(cuda.EventOptions{Interprocess: true})
	keep(t, mine, err)
	handle, err := mine.IPCHandle()
	require.NoError(t, err)
	_, err = d.OpenEvent(handle)
	require.ErrorIs(t, err, driver.ErrHandle, "an event of the same process")
	ordinary, err := d.NewEvent(cuda.EventOptions{})
	keep(t, ordinary, err)
	_, err = ordinary.IPCHandle()
	require.ErrorIs(t, err, driver.ErrInvalid)
}
