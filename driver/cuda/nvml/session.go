package nvml

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

// Unsupported reports whether the device or the driver lacks the feature. An [Error] with such a code matches
// [errors.ErrUnsupported].
func (r Result) Unsupported() bool { return r == ERROR_NOT_SUPPORTED || r == ERROR_FUNCTION_NOT_FOUND }

// Session is one use of NVML by this process. Several sessions may be open. Its devices are valid until the last one ends.
type Session struct {
	mu     sync.Mutex
	closed bool
}

// Open initialises NVML. It succeeds without a GPU if the driver is loaded. The caller closes the session.
func Open() (*Session, error) {
	if err := InitWithFlags(INIT_FLAG_NO_GPUS).Err(); err != nil {
		return nil, fmt.Errorf("nvml: %w", err)
	}
	return &Session{}, nil
}

// Close ends the session. If it fails, it can be repeated. After a success, it has no effect and returns nil.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	r := Shutdown()
	s.closed = r == SUCCESS || r == ERROR_UNINITIALIZED
	if err := r.Err(); err != nil {
		return fmt.Errorf("nvml: %w", err)
	}
	return nil
}

// DriverVersion returns the version of the driver, such as 570.86.15.
func (s *Session) DriverVersion() (string, error) {
	return text(SystemGetDriverVersion)
}

// CUDAVersion returns the newest CUDA version that the driver supports.
func (s *Session) CUDAVersion() (major, minor int, err error) {
	var v int32
	err = SystemGetCudaDriverVersion_v2(&v).Err()
	return int(v / 1000), int(v % 1000 / 10), err
}

// Devices returns the GPUs that this process may query, in the order of their PCI addresses. CUDA_VISIBLE_DEVICES has no
// effect. MIG devices are not included; see [Device.MIG]. If a GPU does not answer, for example because it was lost, the
// error names it and the list has the others.
func (s *Session) Devices() ([]Device, error) {
	var n uint32
	if err := DeviceGetCount(&n).Err(); err != nil {
		return nil, fmt.Errorf("nvml: number of devices: %w", err)
	}
	list := make([]Device, 0, min(n, maxItems))
	var errs []error
	for i := range min(n, maxItems) {
		var d Device
		if err := DeviceGetHandleByIndex(i, &d).Err(); err != nil {
			errs = append(errs, fmt.Errorf("nvml: device %d: %w", i, err))
			continue
		}
		list = append(list, d)
	}
	return list, errors.Join(errs...)
}

// Status reads the state of each GPU. A GPU that does not answer has a Status with its index and Err. An error means that
// no GPU could be read.
func (s *Session) Status() ([]Status, error) {
	var n uint32
	if err := DeviceGetCount(&n).Err(); err != nil {
		return nil, fmt.Errorf("nvml: number of devices: %w", err)
	}
	list := make([]Status, 0, min(n, maxItems))
	for i := range min(n, maxItems) {
		var d Device
		var status Status
		err := DeviceGetHandleByIndex(i, &d).Err()
		if err == nil {
			status, err = d.Status()
		}
		if status.Err = err; err != nil {
			status.Index = int(i)
		}
		list = append(list, status)
	}
	return list, nil
}

// DeviceByUUID returns a GPU or a MIG device by its UUID, such as GPU-... or MIG-....
func (s *Session) DeviceByUUID(uuid string) (Device, error) {
	var d Device
	if err := DeviceGetHandleByUUID(dl.CString(uuid), &d).Err(); err != nil {
		return 0, fmt.Errorf("nvml: device %s: %w", uuid, err)
	}
	return d, nil
}

// maxItems limits the numbers that the library reports, such as the number of processes.
const maxItems = 1 << 16

// text calls a function that stores text in a buffer.
func text(get func(buffer *byte, length uint32) Result) (string, error) {
	var b [128]byte
	if err := get(&b[0], uint32(len(b))).Err(); err != nil {
		return "", err
	}
	return dl.Text(b[:]), nil
}
