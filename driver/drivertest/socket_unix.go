//go:build linux || darwin

package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// messageBytes is the size of one message: a piece in base64 and the other fields.
const messageBytes = 4 * pieceBytes

// socket carries JSON messages, one packet each, with at most one descriptor.
type socket struct{ conn *net.UnixConn }

// socketPair returns one end as a socket and the other as a file for a child process, both owned by the caller.
func socketPair() (*socket, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "peer socket")
	ours, err := newSocket(os.NewFile(uintptr(fds[0]), "peer socket"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// newSocket takes ownership of f.
func newSocket(f *os.File) (*socket, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("drivertest: %s is no Unix socket", f.Name())
	}
	return &socket{unixConn}, nil
}

func (s *socket) Close() error { return s.conn.Close() }

// send borrows file, which may be nil.
func (s *socket) send(message any, file *os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if file == nil {
		_, _, err = s.conn.WriteMsgUnix(data, nil, nil)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		_, _, err = s.conn.WriteMsgUnix(data, syscall.UnixRights(int(fd)), nil)
	})
	return errors.Join(controlErr, err)
}

// receive returns the descriptor of the message, owned by the caller, or nil.
func (s *socket) receive(message any) (*os.File, error) {
	data, control := make([]byte, messageBytes), make([]byte, syscall.CmsgSpace(4))
	n, controlBytes, _, _, err := s.conn.ReadMsgUnix(data, control)
	if err != nil {
		return nil, err
	}
	if n == 0 && controlBytes == 0 {
		return nil, io.EOF
	}
	file, err := receivedFile(control[:controlBytes])
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data[:n], message); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return file, nil
}

func receivedFile(control []byte) (*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var file *os.File
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			file = os.NewFile(uintptr(fd), "received descriptor")
		}
	}
	return file, nil
}
