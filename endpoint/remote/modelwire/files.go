package modelwire

import (
	"fmt"
	"io"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// filePiece is the maximum number of bytes sent from a file in one step. The stall timeout applies to each step.
const filePiece = 4 << 20

// minSendfileBytes is the minimum size for which opening the file behind a memory pays off.
const minSendfileBytes = 256 << 10

// files maps memories to the files behind them. The kernel sends from these files without a copy and without mapping
// their pages. The bytes must not change while they are queued in the connection, which holds for published memory.
type files map[driver.Memory]*os.File

// UseFiles lets the kernel send host memory from files where possible. The memory must not change. The caller closes c.
func (c *Content) UseFiles() { c.files = files{} }

// Close closes the opened files.
func (c *Content) Close() {
	for _, file := range c.files {
		if file != nil {
			_ = file.Close() // best effort: the file was only read
		}
	}
}

// of returns the file for n bytes of p, or nil if they must be written from memory.
func (f files) of(p *part, n int64) *os.File {
	if f == nil || p.memory == nil || p.data == nil {
		return nil
	}
	file, known := f[p.memory]
	if !known && n >= minSendfileBytes {
		file = openMemory(p.memory)
		f[p.memory] = file
	}
	return file
}

// openMemory opens the file behind host memory with a separate file position. It returns nil for other memory, and if
// the memory does not start at offset 0 of the file. It also returns nil if the publisher may reuse the memory, because
// the kernel can still send pages after the file is closed.
func openMemory(memory driver.Memory) *os.File {
	if d, err := memory.Describe(); err != nil || d.Reusable {
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

// sendFile sends n bytes of a file, starting at offset.
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
