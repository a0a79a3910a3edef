package demo

import "time"

// Report describes what the demo did and measured. It is filled in step by step; missing steps are nil or
// zero.
type Report struct {
	// Model describes the shared model.
	Model Model `json:"model"`
	// Processes lists all processes except the director, in order of their start.
	Processes []*Process `json:"processes"`
	// Result is the result of the first owner and of all readers of version 1.
	Result *Result `json:"result,omitempty"`
	// Memory is the memory use of the owner and its readers after all of them have read the whole model.
	Memory *Memory `json:"memory,omitempty"`
	// ClientKilled describes the death of a reader.
	ClientKilled *ClientKilled `json:"client_killed,omitempty"`
	// Published describes the second version. It is nil if Skipped is set.
	Published *Published `json:"published,omitempty"`
	// Skipped is the reason if there is no second version: not enough memory.
	Skipped string `json:"skipped,omitempty"`
	// OwnerKilled describes the death of the owner.
	OwnerKilled *OwnerKilled `json:"owner_killed,omitempty"`
	// Restarted describes the owner's replacement.
	Restarted *Restarted `json:"restarted,omitempty"`
	// Took is the total duration.
	Took time.Duration `json:"took_ns"`
	// OK reports whether all steps succeeded.
	OK bool `json:"ok"`
	// Error is the failure if OK is false.
	Error string `json:"error,omitempty"`
}

// Model describes the shared model.
type Model struct {
	// Path is the file, or empty for a generated model.
	Path string `json:"path,omitempty"`
	// Bytes is the size of its tensors. Tied tensors count once.
	Bytes int64 `json:"bytes"`
	// Mapped is the size of its memory, including alignment gaps.
	Mapped int64 `json:"mapped_bytes"`
	// Tensors is the number of names.
	Tensors int `json:"tensors"`
	// Made is the time to generate the model, or 0 for a file.
	Made time.Duration `json:"made_ns,omitempty"`
}

// Process is one process of the demo.
type Process struct {
	// Role is the role of the process.
	Role string `json:"role"`
	// PID is its process id.
	PID int `json:"pid"`
	// Bytes is the size of its model.
	Bytes int64 `json:"bytes"`
	// Load is the time to load the model from the file, or 0 if the process did not load it.
	Load time.Duration `json:"load_ns,omitempty"`
	// Connect is the time to connect to the owner, or 0 for an owner.
	Connect time.Duration `json:"connect_ns,omitempty"`
	// Attach is the time from the connection until the model was mapped, or 0 if it was not attached.
	Attach time.Duration `json:"attach_ns,omitempty"`
	// Compute is the duration of the first run of the network.
	Compute time.Duration `json:"compute_ns,omitempty"`
	// PSS is the process's share of the model's memory: each page divided by the number of processes that map it.
	PSS int64 `json:"model_pss_bytes,omitempty"`
	// Private is the memory that only this process maps, excluding the model.
	Private int64 `json:"private_bytes,omitempty"`
	// Result is its first result.
	Result *Result `json:"result,omitempty"`
	// End describes how the process ended, as reported by the system.
	End string `json:"end,omitempty"`
}

// Memory sums up the memory use of several processes at one moment.
type Memory struct {
	// Processes is the number of processes.
	Processes int `json:"processes"`
	// Objects is the number of kernel memory objects that hold the model, normally 1. It is 0 if unknown.
	Objects int `json:"objects,omitempty"`
	// PSS is the sum of the processes' shares of the model: the host memory in use.
	PSS int64 `json:"model_pss_bytes"`
	// Copies is the memory that separate copies would need.
	Copies int64 `json:"copies_bytes"`
	// OneCopy reports whether PSS is the size of one model.
	OneCopy bool `json:"one_copy"`
	// Unknown is the reason if the system does not report memory use.
	Unknown string `json:"unknown,omitempty"`
}

// ClientKilled describes the effect of killing a reader with SIGKILL.
type ClientKilled struct {
	// PID is the reader's process id.
	PID int `json:"pid"`
	// Returned is the time from the signal until the owner had its references back.
	Returned time.Duration `json:"references_back_ns"`
	// Holders is the number of remaining readers at the owner.
	Holders int `json:"holders_left"`
}

// Published describes the publication of a second version by another process.
type Published struct {
	// Version is the number of the second version.
	Version uint64 `json:"version"`
	// PID is the publisher's process id.
	PID int `json:"pid"`
	// Changed is the tensor that differs from the first version, or empty for an empty model.
	Changed string `json:"changed"`
	// Runs is the number of computations on version 1 in the meantime, all with the same result.
	Runs int `json:"runs_meanwhile"`
	// Attach is the time a reader took to switch.
	Attach time.Duration `json:"attach_ns"`
	// Result is the result of the publisher before publishing, and of the reader after switching.
	Result *Result `json:"result"`
	// Holders lists the process ids of the readers by version, after one has switched.
	Holders map[uint64][]int `json:"holders"`
}

// OwnerKilled describes the effect of killing the owner with SIGKILL.
type OwnerKilled struct {
	// PID is the owner's process id.
	PID int `json:"pid"`
	// Runs is the number of computations of the readers during and after its death, all with the same results. Each
	// reader started at least one of them afterwards.
	Runs int `json:"runs"`
	// Memory is the readers' memory use after the death. It is nil if they had different versions.
	Memory *Memory `json:"memory,omitempty"`
}

// Restarted describes the replacement of the owner.
type Restarted struct {
	// PID is the new owner's process id.
	PID int `json:"pid"`
	// Reconnected is the time from the start of its process until all readers were connected.
	Reconnected time.Duration `json:"reconnected_ns"`
	// HandOver is the time a reader took to publish its attached version to the new owner.
	HandOver time.Duration `json:"hand_over_ns"`
	// Attach is the time the other reader then took to attach it.
	Attach time.Duration `json:"attach_ns"`
	// Memory is the final memory use of the owner and the readers.
	Memory *Memory `json:"memory"`
}
