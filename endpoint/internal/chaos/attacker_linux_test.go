package chaos_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// attacker is the attacking process.
type attacker struct {
	assignment
	responses
	ends time.Time // end of the time for which it holds its resources

	mu    sync.Mutex
	conns []*raw
}

// The role of an attacker. It keeps its connections open until it is killed.
var (
	attackerRole = role[attacker]("attacker")
	attackBegin  = proctest.NewOp(attackerRole, "begin", func(at *attacker, a assignment) (bool, error) {
		at.assignment, at.ends = a, time.Now().Add(a.Hold)
		i := slices.IndexFunc(attacks, func(one attack) bool { return one.name == a.Attack })
		return true, attacks[i].run(at)
	})
	attackHeard = proctest.NewOp(attackerRole, "heard", func(at *attacker, _ bool) ([]string, error) {
		time.Sleep(time.Until(at.ends))
		var all sync.WaitGroup
		for _, c := range at.conns {
			all.Go(func() { at.drain(c, 500*time.Millisecond) })
		}
		all.Wait()
		return at.lines(), nil
	})
)

// scaled returns n scaled by Scale, at least 2.
func (a *attacker) scaled(n int) int { return max(2, int(float64(n)*a.Scale)) }

// each runs an attack on n connections at once, after their handshakes. Errors of connections are recorded as
// responses.
func (a *attacker) each(n int, attack func(i int, c *raw) error) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			c, err := dial(a.Socket)
			if err != nil {
				a.noteError(err)
				return
			}
			a.mu.Lock()
			a.conns = append(a.conns, c)
			a.mu.Unlock()
			if err = c.handshake("attacker"); err == nil {
				err = attack(i, c)
			}
			a.noteError(err)
		})
	}
	all.Wait()
}

// holding reports whether the attacker still holds its resources.
func (a *attacker) holding() bool { return time.Now().Before(a.ends) }

// memory returns a sparse memfd of that size, sealed as publications must be, and its handle.
func memory(bytes int64) (fd int, h message.Handle, err error) {
	if fd, err = unix.MemfdCreate("attack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return -1, h, err
	}
	if err = unix.Ftruncate(fd, bytes); err != nil {
		return -1, h, err
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE); err != nil {
		return -1, h, err
	}
	dev, err := host.Open()
	if err != nil {
		return -1, h, err
	}
	defer dev.Close()
	return fd, message.Handle{Kind: "memfd", Device: message.UUID(dev.Info().UUID), Bytes: uint64(bytes), File: 0}, nil
}

// publication returns a publication of n tensors of 4 bytes, with names of nameBytes bytes. All tensors share the same
// memory.
func publication(name string, h message.Handle, n, nameBytes int) message.Publish {
	m := message.Manifest{
		NameLengths: make([]byte, 4*n), DTypes: make([]byte, n), Ranks: make([]byte, n), Dims: make([]byte, 8*n),
		Storage: make([]byte, 4*n), Offsets: make([]byte, 8*n),
		Storages: []message.Storage{{Bytes: h.Bytes, Device: h.Device, Type: 1}},
	}
	names := make([]byte, 0, n*nameBytes)
	for i := range n {
		names = fmt.Appendf(names, "%0*d", nameBytes, i)
		binary.LittleEndian.PutUint32(m.NameLengths[4*i:], uint32(nameBytes))
		m.DTypes[i], m.Ranks[i] = 12, 1
		binary.LittleEndian.PutUint64(m.Dims[8*i:], 1)
	}
	m.Names = string(names)
	return message.Publish{Name: name, Manifest: m, Handles: []message.Handle{h}}
}

// argument returns a call with one value.
func argument(endpoint string, value any) (message.Call, error) {
	args, err := message.MarshalPayload(value)
	return message.Call{Endpoint: endpoint, Args: args}, err
}
