package jsonrpc

import (
	"fmt"
	"io"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// filePiece is how much of a file is sent at once, before a peer has to have taken some of it again.
const filePiece = 4 << 20

// fileFrom is the least for which opening the file behind a memory pays.
const fileFrom = 256 << 10

// files are the files behind memories. The kernel sends from them to a connection without a copy, and without their
// pages being mapped here. What is sent so must not change while it lies in the queue of the connection, as published
// memory does not.
type files map[driver.Memory]*os.File

// useFiles has host memory sent by the kernel where it can be. The caller closes c.
func (c *content) useFiles() { c.files = files{} }

// close closes the files that were opened.
func (c *content) close() {
	for _, file := range c.files {
		if file != nil {
			_ = file.Close() // it was only read
		}
	}
}

// of returns the file for n bytes of a part; nil where they have to be written from memory.
func (f files) of(p *part, n int64) *os.File {
	if f == nil || p.memory == nil || p.data == nil {
		return nil
	}
	file, known := f[p.memory]
	if !known && n >= fileFrom {
		file = openMemory(p.memory)
		f[p.memory] = file
	}
	return file
}

// openMemory opens the file behind host memory with a position of its own. It returns nil for other memory, for a file
// that does not begin where the memory does, and for memory that its publisher may use again: the kernel would go on
// sending its pages after the file is closed.
func openMemory(memory driver.Memory) *os.File {
	if m, ok := memory.(driver.Reusable); ok && m.Reusable() {
		return nil
	}
	handle, err := memory.Export()
	if err != nil {
		return nil
	}
	defer handle.Close()
	if handle.Kind != driver.Memfd || handle.File == nil || handle.Offset != 0 {
		return nil
	}
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", handle.File.Fd()))
	if err != nil {
		return nil
	}
	return file
}

// sendFile sends n bytes of a file from an offset on.
func sendFile(w io.Writer, file *os.File, offset, n int64) (int64, error) {
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	sent, err := io.Copy(w, io.LimitReader(file, n))
	if err == nil && sent < n {
		err = io.ErrUnexpectedEOF
	}
	return sent, err
}
