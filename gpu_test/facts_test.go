//go:build linux

package gpu_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// question is one row of FACTS.md.
type question struct {
	// Name is the fact's name in the log.
	Name string
	Text string
	// Test is the name of the test that answers the question.
	Test string
}

// slabs holds the sizes in bytes for which importing and attaching are measured.
var slabs = []int64{2 << 20, 64 << 20, 1 << 30, 16 << 30, 64 << 30}

// questions holds the rows of FACTS.md in order.
var questions = slices.Concat([]question{
	{"ipc-owner-killed", "`cuda-ipc`: the exporter is killed while another process has the memory open. What does the other process read?", "TestFactOwnerKilled"},
	{"fd-owner-killed", "`cuda-fd`: the same", "TestFactOwnerKilled"},
	{"ipc-open-after-kill", "`cuda-ipc`: can a handle be opened after its exporter was killed?", "TestFactOwnerKilled"},
	{"fd-kept-by-bystander", "`cuda-fd`: a process without CUDA keeps the descriptor, the creator is killed. Can a third process import it?", "TestFactBystanderKeepsMemory"},
	{"ipc-same-process", "`cuda-ipc`: what does opening in the exporting process answer?", "TestFactSameProcess"},
	{"ipc-pid-namespaces-different-pid", "`cuda-ipc` between two PID namespaces, the processes have different numbers", "TestFactPIDNamespaces"},
	{"ipc-pid-namespaces-equal-pid", "`cuda-ipc` between two PID namespaces, both processes have the number 1", "TestFactPIDNamespaces"},
	{"fd-namespaces", "`cuda-fd` over SCM_RIGHTS between PID, mount and IPC namespaces", "TestFactDescriptorAcrossNamespaces"},
	{"event-shared-shm", "Interprocess event, both processes have the same /dev/shm", "TestFactEvents"},
	{"event-private-shm", "Interprocess event, each process has a private /dev/shm", "TestFactEvents"},
	{"event-owner-killed", "Interprocess event, opened after its owner was killed", "TestFactEvents"},
	{"readonly-kernel", "A kernel writes through a read-only mapping: what happens to it, and to the owner and another reader?", "TestFactReadOnlyWrite"},
	{"readonly-memset", "The same with cuMemsetD8", "TestFactReadOnlyWrite"},
	{"readonly-copy", "The same with cuMemcpyHtoD", "TestFactReadOnlyWrite"},
	{"ipc-of-vmm-memory", "What does cuIpcGetMemHandle answer for memory of cuMemCreate?", "TestFactLegacyHandlesOf"},
	{"ipc-of-pool-memory", "What does cuIpcGetMemHandle answer for memory of cuMemAllocAsync?", "TestFactLegacyHandlesOf"},
	{"ipc-reopen", "What does a second cuIpcOpenMemHandle of the same handle in one process answer?", "TestFactReopen"},
	{"by-value-handles", "Do 64-byte handles passed by value arrive (cuIpcOpenMemHandle, cuIpcOpenEventHandle)?", "TestFactHandlesByValue"},
	{"signal-handlers", "Which signal handlers does libcuda install, and with SA_ONSTACK?", "TestFactSignalHandlers"},
	{"cloexec-export", "Is a descriptor of cuMemExportToShareableHandle close-on-exec?", "TestFactCloseOnExec"},
	{"cloexec-devices", "Are the descriptors that libcuda opens for itself close-on-exec?", "TestFactCloseOnExec"},
	{"context-bytes", "How much GPU memory does one more process with a context cost?", "TestFactContextCost"},
	{"context-open", "How long does a process take from nothing to an open device?", "TestFactContextCost"},
	{"handle-kinds", "Which handle kinds work?", "TestFactHandleKinds"},
	{"nvml-processes", "Does NVML list a process on the GPU under its number here, and with its memory?", "TestFactProcesses"},
	{"torch-handle", "PyTorch with expandable segments: the bytes before the handles in `storage._share_cuda_()`", "TestFactTorchHandle"},
	{"call-overhead", "One call through the binding (cuCtxGetCurrent, cuMemGetInfo), and `Device.Do` around nothing", "TestFactCallOverhead"},
	{"launch-overhead", "Queueing one empty kernel, and waiting for it", "TestFactCallOverhead"},
	{"load", "`Memory.LoadAt` from a cached file, beside reading alone and copying from pinned memory alone", "TestFactLoad"},
	{"placement-copy", "A placement of a model of 4 GiB from host memory, beside a bare copy from pinned memory", "TestFactPlacement"},
	{"placement-attach", "Attaching a placement that exists, over the socket", "TestFactPlacement"},
	{"placement-swap", "Ten models of 2 GiB of which three fit on the GPU: attaching the next one", "TestFactPlacementSwap"},
	{"load-model", "`module.Load` of the same bytes as a safetensors file", "TestFactLoad"},
}, slabQuestions())

// slabQuestions returns the questions for each slab size.
func slabQuestions() []question {
	var qs []question
	for _, bytes := range slabs {
		for _, kind := range []string{"fd", "ipc"} {
			qs = append(qs, question{
				Name: openFact(kind, bytes), Test: "TestFactOpenCost",
				Text: fmt.Sprintf("`cuda-%s`: importing a slab of %s and closing it", kind, formatBytes(bytes)),
			}, question{
				Name: attachFact(kind, bytes), Test: "TestFactAttach",
				Text: fmt.Sprintf("`cuda-%s`: attaching a model of %s by name, over the socket", kind, formatBytes(bytes)),
			})
		}
	}
	return qs
}

func openFact(kind string, bytes int64) string   { return sizedFact("open", kind, bytes) }
func attachFact(kind string, bytes int64) string { return sizedFact("attach", kind, bytes) }

func sizedFact(what, kind string, bytes int64) string {
	return what + "-" + kind + "-" + strings.ReplaceAll(formatBytes(bytes), " ", "")
}

// fact prints an answer. name must be the name of one of questions.
func fact(tb testing.TB, name, format string, args ...any) {
	tb.Helper()
	if !slices.ContainsFunc(questions, func(q question) bool { return q.Name == name }) {
		tb.Fatalf("no question %q", name)
	}
	record(name, format, args...)
}

// record prints a line for the log. It starts with a newline because the test runner may have left a line unfinished
// with -v.
func record(name, format string, args ...any) {
	value := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Printf("\nFACT %s: %s\n", name, value)
}

// answer returns an error as it is printed in a fact: the driver's code, if there is one.
func answer(err error) string {
	var e *cuda.Error
	switch {
	case err == nil:
		return "works"
	case errors.As(err, &e):
		return fmt.Sprintf("%s answers %s (%d)", e.Func, e.Name(), e.Code)
	}
	return err.Error()
}

// codeAnswer is answer for a result of package cu.
func codeAnswer(r cu.Result) string {
	if r == cu.SUCCESS {
		return "success"
	}
	return fmt.Sprintf("%s (%d)", r, r)
}

// median returns the median of d, which it sorts.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// short rounds d to about three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
