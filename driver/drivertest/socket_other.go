//go:build !linux && !darwin

package drivertest

import (
	"errors"
	"os"
)

// socket does not exist on this system: tests with a second process are skipped.
type socket struct{}

func socketPair() (*socket, *os.File, error)           { return nil, nil, errors.ErrUnsupported }
func newSocket(*os.File) (*socket, error)              { return nil, errors.ErrUnsupported }
func (s *socket) Close() error                         { return nil }
func (s *socket) send(any, *os.File) error             { return errors.ErrUnsupported }
func (s *socket) receive(any) (file *os.File, e error) { return nil, errors.ErrUnsupported }
