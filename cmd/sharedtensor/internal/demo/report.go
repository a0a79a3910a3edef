package demo

import "time"

// Report is what the demo did and measured. It is filled in step by step; what was not reached is nil or zero.
type Report struct {
	// Model is what was shared.
	Model Model `json:"model"`
	// Processes are all processes beside the one that directs, in the order of their start.
	Processes []*Process `json:"processes"`
	// Result is what the first owner computed, and everybody else on version 1.
	Result *Result `json:"result,omitempty"`
	// Memory is what the owner and its readers took, when all had read the whole model.
	Memory *Memory `json:"memory,omitempty"`
	// ClientKilled is the death of a reader.
	ClientKilled *ClientKilled `json:"client_killed,omitempty"`
	// Published is the second version; nil where Skipped says why there is none.
	Published *Published `json:"published,omitempty"`
	// Skipped is why there is no second version: the memory is too small for it. Empty where there is one.
	Skipped string `json:"skipped,omitempty"`
	// OwnerKilled is the death of the owner.
	OwnerKilled *OwnerKilled `json:"owner_killed,omitempty"`
	// Restarted is the owner after it.
	Restarted *Restarted `json:"restarted,omitempty"`
	// Took is the time of it all.
	Took time.Duration `json:"took_ns"`
	// OK reports whether everything went as it should.
	OK bool `json:"ok"`
	// Error is what did not.
	Error string `json:"error,omitempty"`
}

// Model describes the shared model.
type Model struct {
	// Path is the file; empty for a model that the demo made for itself.
	Path string `json:"path,omitempty"`
	// Bytes is the size of its tensors; tied ones count once.
	Bytes int64 `json:"bytes"`
	// Mapped is the size of the memory in which they lie, with the gaps that align them.
	Mapped int64 `json:"mapped_bytes"`
	// Tensors is how many names it has.
	Tensors int `json:"tensors"`
	// Made is how long it took to make it, 0 for a file.
	Made time.Duration `json:"made_ns,omitempty"`
}

// Process is one process of the demo.
type Process struct {
	// Role is what it did.
	Role string `json:"role"`
	// PID is its number.
	PID int `json:"pid"`
	// Bytes is the size of the model that it had.
	Bytes int64 `json:"bytes"`
	// Load is how long it took to bring the model from the file into memory, 0 where that was not done.
	Load time.Duration `json:"load_ns,omitempty"`
	// Connect is how long it took to get a connection to the owner, 0 for an owner.
	Connect time.Duration `json:"connect_ns,omitempty"`
	// Attach is how long it then took until the model was mapped, 0 where it was not attached.
	Attach time.Duration `json:"attach_ns,omitempty"`
	// Compute is how long the first run of the network took.
	Compute time.Duration `json:"compute_ns,omitempty"`
	// PSS is its share of the model's memory: the kernel divides each page by the number of processes that map it.
	PSS int64 `json:"model_pss_bytes,omitempty"`
	// Private is what it has in memory that no other process has, without the model.
	Private int64 `json:"private_bytes,omitempty"`
	// Result is what it computed first.
	Result *Result `json:"result,omitempty"`
	// End is how it ended, as the system says it.
	End string `json:"end,omitempty"`
}

// Memory sums up what the processes of one moment take.
type Memory struct {
	// Processes is how many there were.
	Processes int `json:"processes"`
	// Objects is how many memory objects of the kernel the model lay in; 1 where the kernel tells.
	Objects int `json:"objects,omitempty"`
	// PSS is the sum of their shares of the model: what it takes from the host.
	PSS int64 `json:"model_pss_bytes"`
	// Copies is what one copy for each process would have taken.
	Copies int64 `json:"copies_bytes"`
	// OneCopy reports whether it is the size of the model.
	OneCopy bool `json:"one_copy"`
	// Unknown is why the system does not tell; empty where it does.
	Unknown string `json:"unknown,omitempty"`
}

// ClientKilled is what happened when a reader was killed with SIGKILL.
type ClientKilled struct {
	// PID is the reader.
	PID int `json:"pid"`
	// Returned is the time from the signal until the owner had its references back.
	Returned time.Duration `json:"references_back_ns"`
	// Holders is how many readers the owner still counted.
	Holders int `json:"holders_left"`
}

// Published is what happened when another process published a second version.
type Published struct {
	// Version is its number.
	Version uint64 `json:"version"`
	// PID is the publisher.
	PID int `json:"pid"`
	// Changed is the tensor that differs from the first version; empty for a model without a byte.
	Changed string `json:"changed"`
	// Runs is how often the readers computed on version 1 meanwhile, always with the same result.
	Runs int `json:"runs_meanwhile"`
	// Attach is how long a reader took to switch.
	Attach time.Duration `json:"attach_ns"`
	// Result is what the publisher computed before it published, and the reader after it had switched.
	Result *Result `json:"result"`
	// Holders are the readers' process numbers by version, when one had switched.
	Holders map[uint64][]int `json:"holders"`
}

// OwnerKilled is what happened when the owner was killed with SIGKILL.
type OwnerKilled struct {
	// PID is the owner.
	PID int `json:"pid"`
	// Runs is how often the readers computed while it died and after it, always with the same results; at least one run
	// of each began after.
	Runs int `json:"runs"`
	// Memory is what the readers took then. It is nil where they had different versions.
	Memory *Memory `json:"memory,omitempty"`
}

// Restarted is what happened when another owner took the socket.
type Restarted struct {
	// PID is the new owner.
	PID int `json:"pid"`
	// Reconnected is the time from the start of its process until all readers were connected to it.
	Reconnected time.Duration `json:"reconnected_ns"`
	// HandOver is how long it took a reader to publish what it had attached to the new owner.
	HandOver time.Duration `json:"hand_over_ns"`
	// Attach is how long the other reader then took to attach that.
	Attach time.Duration `json:"attach_ns"`
	// Memory is what owner and readers took at the end.
	Memory *Memory `json:"memory"`
}
