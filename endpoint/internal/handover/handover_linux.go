package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	handoverProtocol = 1
	// filesPerFrame is the number of descriptors in one frame.
	filesPerFrame = 200
	// answerTime limits the wait for one answer of the owner.
	answerTime = 30 * time.Second
)

// variable is the environment variable of a successor: the number of its descriptor and the path of the socket.
const variable = "SHARED_TENSOR_HANDOVER"

var limits = wire.Limits{Frame: 8 << 20, Files: filesPerFrame + 2, WriteTimeout: answerTime, FrameTimeout: answerTime, Ring: -1, BusyPoll: -1}

// step is a request of a successor.
type step struct {
	Protocol uint32 `cbor:"1,keyasint"`
	Serve    bool   `cbor:"2,keyasint,omitempty"`
}

// part is a response of an owner. Its descriptors are the listener, the lock, and the files of Names, in this order.
type part struct {
	Catalog  string   `cbor:"1,keyasint,omitempty"`
	Bound    bool     `cbor:"2,keyasint,omitempty"`
	Listener bool     `cbor:"3,keyasint,omitempty"`
	Lock     bool     `cbor:"4,keyasint,omitempty"`
	Names    []string `cbor:"5,keyasint,omitempty"`
	More     bool     `cbor:"6,keyasint,omitempty"`
}

// State contains the socket and the versions that an owner hands to its successor. The receiver owns the files.
type State struct {
	// Catalog is the id of the versions.
	Catalog string
	// Bound reports whether the owner created the socket file.
	Bound bool
	// Listener is the listening socket. Lock is nil if a service manager passed the socket.
	Listener, Lock *os.File
	// Files are a journal and memory, as in a store.
	Files map[string]*os.File
}

// Close closes the files.
func (s *State) Close() {
	for _, f := range []*os.File{s.Listener, s.Lock} {
		if f != nil {
			f.Close()
		}
	}
	for _, f := range s.Files {
		f.Close()
	}
}

// Successor is a process that is to replace this owner.
type Successor struct {
	cmd    *exec.Cmd
	conn   *wire.Conn
	exited chan error // receives the result of Wait once
	lastID uint64
}

// Start starts the command with one end of a new connection. The socket path identifies the server that it replaces.
func Start(cmd *exec.Cmd, socket string) (*Successor, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	here, there := os.NewFile(uintptr(pair[0]), "handover"), os.NewFile(uintptr(pair[1]), "handover")
	defer there.Close()
	conn, err := connOf(here)
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, there)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d:%s", variable, 2+len(cmd.ExtraFiles), socket))
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the successor: %w", err)
	}
	s := &Successor{cmd: cmd, conn: conn, exited: make(chan error, 1)}
	go func() { s.exited <- cmd.Wait() }()
	return s, nil
}

// connOf returns the connection of a socket, which it takes.
func connOf(f *os.File) (*wire.Conn, error) {
	defer f.Close() // net.FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("%w: the handover is no Unix socket", status.ErrInvalid)
	}
	return wire.NewConn(u, limits)
}

// PID returns the id of the process.
func (s *Successor) PID() int { return s.cmd.Process.Pid }

// Await waits for the next step of the successor: that it is ready to take the state, or with serve that it serves.
func (s *Successor) Await(ctx context.Context, serve bool) error {
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	frame, err := s.conn.Receive()
	if err != nil {
		return s.failed(ctx, err)
	}
	frame.Files.Close()
	var in step
	if err := message.Unmarshal(frame.Body, &in); err != nil {
		return err
	}
	if in.Protocol != handoverProtocol || frame.Kind != wire.KindRequest || in.Serve != serve {
		return fmt.Errorf("%w: the successor has another handover protocol", status.ErrProtocol)
	}
	s.lastID = frame.ID
	return nil
}

// failed describes why the successor sent nothing.
func (s *Successor) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("the successor was not ready: %w", cause)
	}
	select {
	case end := <-s.exited:
		s.exited <- end
		return fmt.Errorf("the successor ended: %w", errors.Join(end, errNotReady))
	case <-time.After(time.Second):
		return fmt.Errorf("the successor failed: %w", err)
	}
}

var errNotReady = errors.New("its log has the reason")

// Send sends the state, whose files it borrows.
func (s *Successor) Send(state *State) error {
	names := make([]string, 0, len(state.Files))
	for name := range state.Files {
		names = append(names, name)
	}
	head := part{Catalog: state.Catalog, Bound: state.Bound, Listener: true, Lock: state.Lock != nil}
	files := []*os.File{state.Listener}
	if state.Lock != nil {
		files = append(files, state.Lock)
	}
	for first := true; first || len(names) > 0; first = false {
		p := part{}
		if first {
			p = head
		} else {
			files = nil
		}
		n := min(len(names), filesPerFrame)
		p.Names, names = names[:n], names[n:]
		p.More = len(names) > 0
		for _, name := range p.Names {
			files = append(files, state.Files[name])
		}
		if err := s.respond(p, files...); err != nil {
			return err
		}
	}
	return nil
}

// Done reports to the successor that this owner accepts no more clients.
func (s *Successor) Done() error { return s.respond(part{}) }

func (s *Successor) respond(p part, files ...*os.File) error {
	body, err := message.Marshal(p)
	if err != nil {
		return err
	}
	return s.conn.Send(wire.KindResponse, s.lastID, body, files...)
}

// Close ends the connection. The process continues.
func (s *Successor) Close() { s.conn.Close() }

// Abort kills the process and waits until it has ended.
func (s *Successor) Abort() {
	_ = s.cmd.Process.Kill() // fails if it has ended
	_ = s.wait()             // killed, or ended before
	s.conn.Close()
}

// Ended waits for the end of the process and returns its status.
func (s *Successor) Ended() *os.ProcessState {
	_ = s.wait() // the status has it
	return s.cmd.ProcessState
}

// wait returns how the process ended.
func (s *Successor) wait() error { return <-s.exited }

// Predecessor is the owner that has started this process as its successor.
type Predecessor struct {
	// Socket is the path of the owner's socket.
	Socket string

	conn   *wire.Conn
	lastID uint64
}

// inherited takes the descriptor of a handover once. Importing the package changes nothing.
var inherited = sync.OnceValue(takeEnvironment)

// takeEnvironment removes the descriptor from the environment and keeps it from children.
func takeEnvironment() *Predecessor {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil
	}
	_ = os.Unsetenv(variable) // fails only for invalid names
	number, socket, _ := strings.Cut(text, ":")
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 3 || socket == "" {
		return nil
	}
	unix.CloseOnExec(fd)
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(peer.Pid) != os.Getppid() || int(peer.Uid) != os.Geteuid() {
		return nil
	}
	conn, err := connOf(os.NewFile(uintptr(fd), "handover"))
	if err != nil {
		return nil
	}
	return &Predecessor{Socket: socket, conn: conn}
}

// Inherited returns the owner that this process is to replace, or nil. The first caller of [Predecessor.Take] gets its
// state. A successor calls it before it starts processes, which would inherit the descriptor otherwise.
func Inherited() *Predecessor { return inherited() }

// ErrPredecessorGone means that the owner ended before it handed anything over.
var ErrPredecessorGone = errors.New("the owner that started this process has ended")

// Take requests the state. Call it once, after everything else that can fail.
func (p *Predecessor) Take() (state *State, err error) {
	inherited = nil
	if err := p.request(step{Protocol: handoverProtocol}); err != nil {
		return nil, gone(err)
	}
	state = &State{Files: map[string]*os.File{}}
	for more := true; more; {
		if more, err = p.add(state); err != nil {
			state.Close()
			return nil, err
		}
	}
	return state, nil
}

// gone replaces the errors of a connection whose peer has ended.
func gone(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, end) {
			return ErrPredecessorGone
		}
	}
	return err
}

// receive reads one response.
func (p *Predecessor) receive() (got part, files *wire.Files, err error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return got, nil, err
	}
	frame, err := p.conn.Receive()
	if err != nil {
		return got, nil, gone(err)
	}
	if frame.Kind != wire.KindResponse || frame.ID != p.lastID {
		err = fmt.Errorf("%w: the owner sent no state", status.ErrProtocol)
	} else if failed := message.Unmarshal(frame.Body, &got); failed != nil {
		err = fmt.Errorf("%w: %v", status.ErrProtocol, failed)
	}
	return got, frame.Files, err
}

// add receives one part and adds its descriptors to the state. It reports whether more parts follow.
func (p *Predecessor) add(state *State) (more bool, err error) {
	got, files, err := p.receive()
	defer files.Close()
	if err == nil {
		err = got.check(state, files.Len())
	}
	if err != nil {
		return false, err
	}
	next := 0
	take := func() *os.File {
		next++
		return files.Take(next - 1)
	}
	if got.Listener {
		state.Catalog, state.Bound, state.Listener = got.Catalog, got.Bound, take()
	}
	if got.Lock {
		state.Lock = take()
	}
	for _, name := range got.Names {
		state.Files[name] = take()
	}
	return got.More, nil
}

// check returns an error if a part does not fit its descriptors, or the parts before it.
func (p *part) check(state *State, files int) error {
	want := len(p.Names)
	for _, present := range []bool{p.Listener, p.Lock} {
		if present {
			want++
		}
	}
	switch {
	case files != want:
		return fmt.Errorf("%w: a part of the state has %d descriptors instead of %d", status.ErrProtocol, files, want)
	case p.Listener != (state.Listener == nil), p.Lock && !p.Listener:
		return fmt.Errorf("%w: only the first part of the state has the socket", status.ErrProtocol)
	case p.More && len(p.Names) == 0:
		return fmt.Errorf("%w: a part of the state is empty", status.ErrProtocol)
	}
	for i, name := range p.Names {
		if state.Files[name] != nil || slices.Contains(p.Names[:i], name) {
			return fmt.Errorf("%w: %q was handed over twice", status.ErrProtocol, name)
		}
	}
	return nil
}

// Serve reports to the owner that this process accepts clients from now on, and waits until the owner has stopped accepting
// or has ended.
func (p *Predecessor) Serve() {
	defer p.conn.Close()
	if p.request(step{Protocol: handoverProtocol, Serve: true}) == nil {
		_, files, _ := p.receive() // best effort: the owner may have been killed
		files.Close()
	}
}

// Close ends the handover. The owner continues.
func (p *Predecessor) Close() { p.conn.Close() }

func (p *Predecessor) request(s step) error {
	body, err := message.Marshal(s)
	if err != nil {
		return err
	}
	p.lastID++
	return p.conn.Send(wire.KindRequest, p.lastID, body)
}

// Environment returns the environment of this process without variables for it alone.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LISTEN_") || strings.HasPrefix(v, variable+"=")
	})
}
