//go:build linux

package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The tests run owners, readers and bystanders as separate processes: this test binary, started again with
// agentVariable set. An agent reads requests and descriptors from a socket and answers each request.
const (
	agentVariable = "GPU_TEST_AGENT"
	agentSocket   = 3 // the first of exec.Cmd's ExtraFiles
)

// request is a test's request to an agent.
type request struct {
	Do       string
	Key      string
	Kind     string
	Bytes    int64
	Seed     byte
	Writable bool
	Times    int
	Blob     []byte
	Device   []byte
	Offset   int64
	Name     string
	Socket   string
	Version  uint64
}

// response is an agent's response.
type response struct {
	Error   string
	Answer  string   // the error as it is printed in a fact
	Is      []string // names of the sentinels that match the error
	Kind    string
	Bytes   int64
	Blob    []byte
	Device  []byte
	Offset  int64
	Nanos   []int64
	More    []int64 // nanoseconds of a second measurement
	Text    string
	Version uint64
	HasFile bool
}

// sentinels holds the errors that agents report by name.
var sentinels = map[string]error{
	"fault": cuda.ErrFault, "context": cuda.ErrContext, "gone": cuda.ErrPeerGone, "handle": driver.ErrHandle, "memory": driver.ErrOutOfMemory,
	"unsupported": errors.ErrUnsupported, "read-only": driver.ErrReadOnly, "not found": endpoint.ErrNotFound, "unavailable": endpoint.ErrUnavailable,
}

// agent is the state of an agent process. It does not use CUDA until a request opens the device.
type agent struct {
	dev      *cuda.Device
	memories map[string]*cuda.Memory
	events   map[string]*cuda.Event
	kept     *os.File
	share    *sharer
}

// runAgent is the main function of an agent process.
func runAgent() int {
	if err := serveAgent(); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}

func serveAgent() error {
	f := os.NewFile(agentSocket, "agent socket")
	unix.CloseOnExec(agentSocket)
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return err
	}
	conn, err := wire.NewConn(c.(*net.UnixConn), wire.Limits{})
	if err != nil {
		return err
	}
	defer conn.Close()
	a := &agent{memories: map[string]*cuda.Memory{}, events: map[string]*cuda.Event{}}
	for {
		frame, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := a.serve(conn, frame); err != nil {
			return err
		}
	}
}

// serve answers one request.
func (a *agent) serve(conn *wire.Conn, frame wire.Frame) error {
	defer frame.Files.Close()
	var q request
	if err := message.Unmarshal(frame.Body, &q); err != nil {
		return err
	}
	var in *os.File
	if frame.Files.Len() > 0 {
		in = frame.Files.Take(0)
		defer in.Close()
	}
	r, out, err := a.do(q, in)
	if err != nil {
		r.Error, r.Answer = err.Error(), answer(err)
		for name, s := range sentinels {
			if errors.Is(err, s) {
				r.Is = append(r.Is, name)
			}
		}
	}
	var files []*os.File
	if out != nil {
		defer out.Close()
		files, r.HasFile = append(files, out), true
	}
	body, err := message.Marshal(r)
	if err != nil {
		return err
	}
	return conn.Send(wire.KindResponse, frame.ID, body, files...)
}

// do executes a request. It borrows in. The caller owns the returned file.
func (a *agent) do(q request, in *os.File) (r response, out *os.File, err error) {
	switch q.Do {
	case "keep": // a descriptor of any kind
		a.kept, err = dup(in)
	case "give":
		out, err = dup(a.kept)
	case "pid":
		r.Offset = int64(os.Getpid())
	case "own shm":
		err = ownSharedMemory()
	case "signals":
		r, err = signalReport()
	case "descriptors":
		r.Text, err = descriptorReport()
	case "open":
		start := time.Now()
		a.dev, err = cuda.Open(0, cuda.WithHandleKind(driver.HandleKind(q.Kind)))
		r.Nanos = []int64{time.Since(start).Nanoseconds()}
	default:
		return a.use(q, in)
	}
	return r, out, err
}

// use handles requests that need an open device.
func (a *agent) use(q request, in *os.File) (r response, out *os.File, err error) {
	switch q.Do {
	case "alloc":
		var m driver.Memory
		if m, err = a.dev.Alloc(q.Bytes); err == nil {
			a.memories[q.Key] = m.(*cuda.Memory)
			err = fill(a.memories[q.Key], q.Seed)
		}
	case "reserve": // not filled, because filling large slabs is slow
		var m driver.Memory
		if m, err = a.dev.Alloc(q.Bytes); err == nil {
			a.memories[q.Key] = m.(*cuda.Memory)
		}
	case "export":
		var h driver.Handle
		if h, err = a.memories[q.Key].Export(); err == nil {
			r, out = packHandle(h)
		}
	case "import":
		var m driver.Memory
		if m, err = a.dev.Import(unpackHandle(q, in), driver.ImportOptions{Writable: q.Writable}); err == nil {
			a.memories[q.Key] = m.(*cuda.Memory)
		}
	case "import from pool": // the descriptor is that of the pool, the blob that of the memory
		a.memories[q.Key], err = a.importFromPool(in, [64]byte(q.Blob))
	case "time import":
		r.Nanos, r.More, err = a.timeImports(unpackHandle(q, in), q.Times)
	case "verify":
		err = verify(a.memories[q.Key], q.Seed)
	case "fill":
		err = fill(a.memories[q.Key], q.Seed)
	case "write":
		err = a.write(q.Kind, a.memories[q.Key])
	case "close":
		err = a.memories[q.Key].Close()
	case "free bytes":
		r.Bytes, _, err = a.dev.MemoryInfo()
	case "event", "record", "open event", "wait event", "close event":
		r, err = a.useEvents(q)
	default:
		r, err = a.useEndpoint(q)
	}
	return r, out, err
}

// timeImports imports and closes a handle the given number of times. It returns the durations of the imports and of the
// closes.
func (a *agent) timeImports(h driver.Handle, times int) (imports, closes []int64, err error) {
	for range times {
		start := time.Now()
		m, err := a.dev.Import(h, driver.ImportOptions{})
		if err != nil {
			return nil, nil, err
		}
		imports = append(imports, time.Since(start).Nanoseconds())
		start = time.Now()
		if err := m.Close(); err != nil {
			return nil, nil, err
		}
		closes = append(closes, time.Since(start).Nanoseconds())
	}
	return imports, closes, nil
}

// packHandle returns a response that describes the handle, and the file of the handle, if any.
func packHandle(h driver.Handle) (response, *os.File) {
	return response{Kind: string(h.Kind), Bytes: h.Bytes, Offset: h.Offset, Device: h.Device[:], Blob: h.Blob}, h.File
}

func unpackHandle(q request, f *os.File) driver.Handle {
	h := driver.Handle{Kind: driver.HandleKind(q.Kind), Bytes: q.Bytes, Offset: q.Offset, Blob: q.Blob, File: f}
	copy(h.Device[:], q.Device)
	return h
}

// dup returns an owned duplicate of f.
func dup(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, errors.New("the request has no descriptor")
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// pieceBytes is the size of the pieces in which memory is filled and compared.
const pieceBytes = 4 << 20

// piece returns the expected bytes at offset, which must be a multiple of pieceBytes.
func piece(seed byte, offset int64, n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	if n >= 8 {
		binary.LittleEndian.PutUint64(p, uint64(offset)^uint64(seed))
	}
	return p
}

func fill(m *cuda.Memory, seed byte) error {
	for off := int64(0); off < m.Bytes(); off += pieceBytes {
		if _, err := m.WriteAt(piece(seed, off, min(pieceBytes, m.Bytes()-off)), off); err != nil {
			return err
		}
	}
	return nil
}

// errChanged reports that memory does not hold the bytes that were written.
var errChanged = errors.New("the bytes are not what was written")

func verify(m *cuda.Memory, seed byte) error {
	got := make([]byte, pieceBytes)
	for off := int64(0); off < m.Bytes(); off += pieceBytes {
		n := min(pieceBytes, m.Bytes()-off)
		if _, err := m.ReadAt(got[:n], off); err != nil {
			return err
		}
		if !bytes.Equal(got[:n], piece(seed, off, n)) {
			return fmt.Errorf("%w, first in the %d bytes at %d", errChanged, n, off)
		}
	}
	return nil
}

// durations converts nanoseconds that were received over the socket.
func durations(nanos []int64) []time.Duration {
	var d []time.Duration
	for _, n := range nanos {
		d = append(d, time.Duration(n))
	}
	return slices.Clip(d)
}
