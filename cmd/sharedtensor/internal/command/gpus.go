package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// gpuUse is the memory of a GPU and the processes that hold it, also those outside sharedtensor. Values that the driver does
// not report are nil.
type gpuUse struct {
	// Index is the index in the order of PCI addresses. CUDA's ordinals differ if CUDA_VISIBLE_DEVICES is set.
	Index int `json:"index"`
	// UUID has no prefix, like the UUID of a device.
	UUID        string       `json:"uuid"`
	Name        string       `json:"name"`
	Total       int64        `json:"bytes,omitempty"`
	Used        int64        `json:"used_bytes,omitempty"`
	Busy        *int         `json:"busy_percent,omitempty"`
	Temperature *int         `json:"celsius,omitempty"`
	Watts       *float64     `json:"watts,omitempty"`
	Processes   []gpuProcess `json:"processes"`
	// Instances are the MIG devices of a GPU in MIG mode. The GPU's processes include theirs.
	Instances []gpuInstance `json:"mig,omitempty"`
	// Error is the reason why the GPU could not be read. Other values may be missing.
	Error string `json:"error,omitempty"`
}

// gpuInstance is a MIG device.
type gpuInstance struct {
	// UUID has no prefix, as those of devices.
	UUID  string `json:"uuid"`
	Total int64  `json:"bytes,omitempty"`
	Used  int64  `json:"used_bytes,omitempty"`
	Error string `json:"error,omitempty"`
}

// gpuProcess is a process that holds memory of a GPU.
type gpuProcess struct {
	PID int `json:"pid"`
	// Bytes is -1 if the driver does not report it.
	Bytes int64 `json:"bytes"`
	// Uses has the letters of nvidia-smi: C for compute, G for graphics, M for MPS.
	Uses string `json:"uses"`
	// Command is the name of the program. It is empty if this process cannot see it.
	Command string `json:"command,omitempty"`
	// Role is the process's role in the owner that top watches.
	Role string `json:"role,omitempty"`
}

var (
	errNoGPUReader = errors.New("this program was built without CUDA and does not read GPU processes")
	errNoNVML      = errors.New("there is no NVML library")
	errNVMLSlow    = errors.New("NVML did not answer in time")
)

// gpuReader reads the GPUs of this host. A read that the driver does not answer occupies the reader until it does.
type gpuReader struct{ results chan gpuResult }

type gpuResult struct {
	list []gpuUse
	err  error
}

// read returns the GPUs, or an error if ctx ends first.
func (r *gpuReader) read(ctx context.Context) ([]gpuUse, error) {
	if r.results == nil {
		results := make(chan gpuResult, 1)
		r.results = results
		go func() {
			list, err := readGPUs()
			results <- gpuResult{list, err}
		}()
	}
	select {
	case got := <-r.results:
		r.results = nil
		return got.list, got.err
	case <-ctx.Done():
		return nil, errNVMLSlow
	}
}

// gpuTime limits the time that top waits for the driver.
const gpuTime = time.Second

// addGPUs adds the GPUs, or the reason why they are not listed.
func (t *topSnapshot) addGPUs(ctx context.Context, r *gpuReader) {
	ctx, cancel := context.WithTimeout(ctx, gpuTime)
	defer cancel()
	list, err := r.read(ctx)
	switch {
	case errors.Is(err, errNoNVML) && !hasGPU(os.DirFS("/")):
	case err != nil:
		t.GPUNote = err.Error()
	}
	t.GPUs = list
	setRoles(t.GPUs, t.Owner)
}

// commandOf returns the name of a process's program, or an empty text.
func commandOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// setRoles sets the role of each process: owner, session N, or outside sharedtensor.
func setRoles(list []gpuUse, owner endpoint.ServerInfo) {
	roles := map[int]string{}
	for _, s := range owner.Sessions {
		if !s.Self {
			roles[int(s.PID)] = "session " + strconv.FormatUint(s.Session, 10)
		}
	}
	roles[int(owner.PID)] = "owner"
	for i := range list {
		for k := range list[i].Processes {
			p := &list[i].Processes[k]
			p.Role = roles[p.PID]
			if p.Role == "" {
				p.Role = "outside"
			}
		}
	}
}

// bytesText formats bytes that may be unknown.
func bytesText(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return term.FormatBytes(n)
}

// gpus lists the GPUs and the processes that hold their memory.
func (t *topSnapshot) gpus(width int) topSection {
	if t.GPUNote != "" {
		return topSection{heading: "GPU PROCESSES  not read: " + term.Printable(t.GPUNote)}
	}
	names := map[string]string{}
	for _, d := range t.Devices {
		names[d.UUID] = d.Device
	}
	table := term.NewTable(term.Column{Title: "GPU PROCESS"}, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "USES"},
		term.Column{Title: "ROLE"}, term.Column{Title: "COMMAND", Give: 1})
	for _, g := range t.GPUs {
		name := "gpu " + strconv.Itoa(g.Index)
		if device := names[g.UUID]; device != "" {
			name = device
		}
		table.Add(name, g.usedText(), "", "", g.summary())
		for _, m := range g.Instances {
			name := "  MIG-" + m.UUID
			if device := names[m.UUID]; device != "" {
				name = "  " + device
			}
			table.Add(name, term.FormatBytes(m.Used), "", "", m.summary())
		}
		for _, p := range g.Processes {
			table.Add("  "+strconv.Itoa(p.PID), bytesText(p.Bytes), p.Uses, p.Role, p.Command)
		}
	}
	return tableSection(table, width)
}

// usedText formats the bytes in use.
func (g *gpuUse) usedText() string {
	if g.Error != "" && g.Total == 0 {
		return "unknown"
	}
	return term.FormatBytes(g.Used)
}

// summary returns the size of a MIG device, or why it could not be read.
func (m *gpuInstance) summary() string {
	if m.Error != "" {
		return "MIG device, not read: " + m.Error
	}
	return "MIG device, " + term.FormatBytes(m.Total)
}

// summary returns the name, the size and the sensors in one line, and why values are missing.
func (g *gpuUse) summary() string {
	var words []string
	if g.Name != "" {
		words = append(words, g.Name)
	}
	if g.Total > 0 {
		words = append(words, term.FormatBytes(g.Total))
	}
	if g.Busy != nil {
		words = append(words, fmt.Sprintf("%d%% busy", *g.Busy))
	}
	if g.Temperature != nil {
		words = append(words, fmt.Sprintf("%d °C", *g.Temperature))
	}
	if g.Watts != nil {
		words = append(words, fmt.Sprintf("%.0f W", *g.Watts))
	}
	if g.Error != "" {
		words = append(words, "not read: "+g.Error)
	}
	return strings.Join(words, ", ")
}

// examineGPUs reports the memory of each GPU and the processes that hold it.
func examineGPUs(ctx context.Context) []finding {
	const check = "GPU processes"
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	list, err := new(gpuReader).read(ctx)
	switch {
	case errors.Is(err, errNoGPUReader):
		return []finding{ok(check, "not read: %v", err)}
	case errors.Is(err, errNoNVML) && !hasGPU(os.DirFS("/")):
		return []finding{ok(check, "no GPU")}
	case err != nil:
		return []finding{warn(check, "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; check nvidia-smi", "not read: %v", err)}
	case len(list) == 0:
		return []finding{ok(check, "no GPU")}
	}
	var findings []finding
	for _, g := range list {
		if g.Error != "" {
			findings = append(findings, warn(fmt.Sprintf("GPU %d memory", g.Index), "check nvidia-smi and the kernel's log", "not read: %s", g.Error))
			continue
		}
		findings = append(findings, ok(fmt.Sprintf("GPU %d memory", g.Index), "%s of %s used; %s", term.FormatBytes(g.Used), term.FormatBytes(g.Total), processesText(g.Processes)))
		for _, m := range g.Instances {
			check, text := "MIG-"+m.UUID, fmt.Sprintf("MIG device of GPU %d: %s of %s used", g.Index, term.FormatBytes(m.Used), term.FormatBytes(m.Total))
			if m.Error != "" {
				findings = append(findings, warn(check, "check nvidia-smi", "MIG device of GPU %d, not read: %s", g.Index, m.Error))
				continue
			}
			findings = append(findings, ok(check, "%s", text))
		}
	}
	return findings
}

// maxListed is the number of processes that doctor lists for each GPU.
const maxListed = 8

// processesText lists processes with their memory.
func processesText(list []gpuProcess) string {
	if len(list) == 0 {
		return "no process holds memory"
	}
	var words []string
	for _, p := range list[:min(len(list), maxListed)] {
		words = append(words, strings.TrimSpace(fmt.Sprintf("pid %d %s", p.PID, p.Command))+" "+bytesText(p.Bytes))
	}
	text := fmt.Sprintf("held by %d: %s", len(list), strings.Join(words, ", "))
	if len(list) > maxListed {
		text += fmt.Sprintf(" and %d more", len(list)-maxListed)
	}
	return text
}
