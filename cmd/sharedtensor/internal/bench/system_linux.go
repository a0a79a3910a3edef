package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// procField reads a size in kB from a file such as /proc/meminfo and returns it in bytes.
func procField(path, field string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		rest, found := strings.CutPrefix(line, field)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %s %w", path, field, err)
		}
		return n * 1024, nil
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}

// affordable returns how much memory one benchmark may use. It leaves memory for other processes on this host.
func affordable() (int64, error) {
	available, err := procField("/proc/meminfo", "MemAvailable:")
	return available / 4, err
}

// descriptors returns the number of files that a process may open. The Go runtime raises the soft limit to the hard
// one.
func descriptors() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int(min(r.Cur, 1<<30))
}

// zeros returns a model of equal one-dimensional tensors in one slab with all pages allocated.
func zeros(dev driver.Device, tensors int, bytes int64) (_ *module.StateDict, err error) {
	if tensors < 1 || bytes < int64(tensors) {
		return nil, fmt.Errorf("%w: %d tensors in %d bytes", driver.ErrInvalid, tensors, bytes)
	}
	mem, err := dev.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	slab := tensor.NewStorage(mem)
	defer func() {
		if closeErr := slab.Close(); err == nil { // the tensors hold their own references
			err = closeErr
		}
	}()
	info := dev.Info()
	m := &module.Manifest{Storages: []module.StorageSpec{{Bytes: bytes, Device: info.UUID, DeviceType: info.Type}}}
	each := bytes / int64(tensors)
	for i := range tensors {
		m.Tensors = append(m.Tensors, module.TensorSpec{
			Name: fmt.Sprintf("model.layers.%d.weight", i),
			Spec: tensor.Spec{DType: tensor.Uint8, Shape: tensor.Shape{each}, ByteOffset: int64(i) * each},
		})
	}
	return module.FromManifest(m, []*tensor.Storage{slab})
}
