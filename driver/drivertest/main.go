package drivertest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	// peerVariable makes a test binary a peer. Its value is the number of the inherited socket.
	peerVariable = "SHAREDTENSOR_DRIVERTEST_PEER"
	peerSocket   = 3 // the first of exec.Cmd's ExtraFiles
)

// Main is the TestMain of a package that calls [TestDevice]. It runs the tests, or, if the suite started this binary as
// the second process, serves the suite with a device from open, and exits. open returns the device owned. Its
// environment is that of the test and the variables of [PeerEnv].
func Main(m *testing.M, open func() (driver.Device, error)) {
	if os.Getenv(peerVariable) == "" {
		os.Exit(m.Run())
	}
	if err := servePeer(open); err != nil {
		fmt.Fprintln(os.Stderr, "drivertest peer:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

// servePeer answers requests until the suite disconnects, and fails if resources are left after everything was closed.
func servePeer(open func() (driver.Device, error)) error {
	s, err := newSocket(os.NewFile(peerSocket, "suite socket"))
	if err != nil {
		return err
	}
	defer s.Close()
	dev, err := open()
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := warmUp(dev); err != nil {
		return err
	}
	before := TakeSnapshot(strings.Fields(os.Getenv(ignoreVariable))...)
	p := &peerServer{device: dev, memories: map[int]driver.Memory{}}
	if err := p.serve(s); err != nil {
		return err
	}
	for _, m := range p.memories {
		if err := m.Close(); err != nil {
			return err
		}
	}
	if p.leaky {
		return nil
	}
	if left := before.WaitNone(settle); len(left) > 0 {
		return fmt.Errorf("%d left behind:\n%s", len(left), strings.Join(left, "\n"))
	}
	return nil
}

// peerServer is the suite's second process.
type peerServer struct {
	device   driver.Device
	memories map[int]driver.Memory
	last     int
	leaky    bool // it was asked to leak
}

func (p *peerServer) serve(s *socket) error {
	for {
		var q request
		file, err := s.receive(&q)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r, out, err := p.answer(q, file)
		if file != nil {
			file.Close()
		}
		r.Err = packError(err)
		err = s.send(r, out)
		if out != nil {
			out.Close()
		}
		if err != nil {
			return err
		}
	}
}

// answer executes one request. It borrows file; the returned file is owned by the caller.
func (p *peerServer) answer(q request, file *os.File) (response, *os.File, error) {
	switch q.Op {
	case "info":
		return response{Info: p.device.Info()}, nil, nil
	case "forget":
		p.leaky = true
		return response{}, nil, forgetMemory(p.device, func() (driver.Memory, error) {
			if q.Handle == nil {
				return p.device.Alloc(q.Bytes)
			}
			return p.device.Import(unpackHandle(q.Handle, file), driver.ImportOptions{Writable: q.Writable})
		})
	case "alloc":
		return p.keep(p.device.Alloc(q.Bytes))
	case "import":
		return p.keep(p.device.Import(unpackHandle(q.Handle, file), driver.ImportOptions{Writable: q.Writable}))
	}
	m := p.memories[q.Memory]
	if m == nil {
		return response{}, nil, fmt.Errorf("drivertest: no memory %d for %q", q.Memory, q.Op)
	}
	switch q.Op {
	case "read":
		data := make([]byte, min(q.Bytes, pieceBytes))
		n, err := m.ReadAt(data, q.Offset)
		return response{Data: data[:n]}, nil, err
	case "write":
		n, err := m.WriteAt(q.Data, q.Offset)
		return response{N: n}, nil, err
	case "export":
		h, err := m.Export()
		if err != nil {
			return response{}, nil, err
		}
		packed, out := packHandle(h)
		return response{Handle: packed}, out, nil
	case "close":
		return response{}, nil, m.Close()
	}
	return response{}, nil, fmt.Errorf("drivertest: unknown operation %q", q.Op)
}

func (p *peerServer) keep(m driver.Memory, err error) (response, *os.File, error) {
	if err != nil {
		return response{}, nil, err
	}
	p.last++
	p.memories[p.last] = m
	return response{Memory: p.last, Bytes: m.Bytes(), Writable: m.Writable()}, nil, nil
}
