// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/wire"
)

// Fault is a rule that makes calls or tasks fail. Method, Path, Task and TaskID select calls or tasks; Skip, Count and
// Probability control when the rule applies; the other fields define its effect.
type Fault struct {
	// Method is GET, POST, PUT or DELETE; empty matches all.
	Method string `json:"method,omitempty"`
	// Path is a pattern for the path below /api2/json, as in path.Match, for example "/nodes/*/qemu/*/clone". A template
	// such as "/nodes/{node}/qemu" matches its method exactly; empty matches all.
	Path string `json:"path,omitempty"`
	// Task is a task type such as "qmclone": the rule then applies to tasks instead of calls. "*" matches all.
	Task string `json:"task,omitempty"`
	// TaskID restricts a rule for tasks to one ID, usually a VMID.
	TaskID string `json:"taskID,omitempty"`

	// Skip ignores that many matches first; Count disables the rule after that many hits (0: never).
	Skip  int `json:"skip,omitempty"`
	Count int `json:"count,omitempty"`
	// Probability is the chance of a hit; 0 means always.
	Probability float64 `json:"probability,omitempty"`
	// InARow makes each hit a series of that many hits; 0 means one.
	InARow int `json:"inARow,omitempty"`

	// Delay delays the call or task, in simulated time. Jitter adds a random part of itself.
	Delay  Duration `json:"delay,omitempty"`
	Jitter Duration `json:"jitter,omitempty"`
	// Status and Message are returned without any effect, for example 500 "got no worker upid - start worker
	// failed", 595 or 596.
	Status  int    `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	// AfterCall returns Status after the call has taken effect, as the proxy does when it stops waiting for the daemon.
	AfterCall bool `json:"afterCall,omitempty"`
	// DropBefore closes the connection before the call takes effect, DropAfter after it has taken effect.
	DropBefore bool `json:"dropBefore,omitempty"`
	DropAfter  bool `json:"dropAfter,omitempty"`
	// CutUpload closes the connection after an upload was accepted. Its task fails, because the server removes the
	// temporary file of a closed connection.
	CutUpload bool `json:"cutUpload,omitempty"`
	// Fail makes a task fail with this error without doing its work.
	Fail string `json:"fail,omitempty"`
	// FailAfter makes a task end with this error although it has done its work.
	FailAfter string `json:"failAfter,omitempty"`
	// Hang makes a task run until it is stopped.
	Hang bool `json:"hang,omitempty"`
}

// Duration is a time.Duration that is encoded in JSON as "1.5s".
type Duration time.Duration

// MarshalText returns the duration as text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses a duration such as "1.5s".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("parsing duration %q: %w", text, err)
	}
	*d = Duration(v)
	return nil
}

func (f Fault) validate() error {
	switch {
	case f.Task != "" && (f.Status != 0 || f.DropBefore || f.DropAfter || f.CutUpload):
		return errors.New("a rule for tasks cannot set the response of calls: use fail, failAfter, hang or delay")
	case f.Task == "" && (f.Fail != "" || f.FailAfter != "" || f.Hang):
		return errors.New("fail, failAfter and hang are for tasks: set task")
	}
	return f.validateCall()
}

func (f Fault) validateCall() error {
	switch {
	case f.AfterCall && f.Status == 0:
		return errors.New("afterCall needs a status")
	case f.Probability < 0 || f.Probability > 1:
		return fmt.Errorf("probability: %v is not between 0 and 1", f.Probability)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status: %d is not an error", f.Status)
	}
	if _, err := path.Match(f.Path, "/"); err != nil {
		return fmt.Errorf("path: %q is not a pattern: %w", f.Path, err)
	}
	return nil
}

// FaultState is a rule with the number of its matches and hits.
type FaultState struct {
	ID int `json:"id"`
	Fault
	Matched int `json:"matched"`
	Hits    int `json:"hits"`

	following int        // hits that follow in the current series
	rand      *rand.Rand // of this rule only: the order of other calls and tasks does not change its hits
}

type faultTable struct {
	clock *clock.Clock
	seed  uint64
	mu    sync.Mutex
	next  int
	rules []*FaultState
}

func newFaultTable(seed uint64, c *clock.Clock) *faultTable {
	return &faultTable{clock: c, seed: seed}
}

// AddFault adds a rule and returns its ID. Rules are evaluated in the order in which they were added; the first hit
// applies.
func (s *Simulator) AddFault(f Fault) (int, error) {
	if err := f.validate(); err != nil {
		return 0, fmt.Errorf("adding fault: %w", err)
	}
	t := s.faults
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	source := rand.NewPCG(t.seed, uint64(t.next))                                        //nolint:gosec // never negative
	t.rules = append(t.rules, &FaultState{ID: t.next, Fault: f, rand: rand.New(source)}) //nolint:gosec // deterministic by design
	return t.next, nil
}

// AddFaults adds rules, for example LoadFaults.
func (s *Simulator) AddFaults(rules []Fault) error {
	for _, f := range rules {
		if _, err := s.AddFault(f); err != nil {
			return err
		}
	}
	return nil
}

// RemoveFault removes a rule and reports whether it existed.
func (s *Simulator) RemoveFault(id int) bool {
	t := s.faults
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.rules)
	t.rules = slices.DeleteFunc(t.rules, func(r *FaultState) bool { return r.ID == id })
	return len(t.rules) < before
}

// ClearFaults removes all rules.
func (s *Simulator) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.rules = nil
}

// Faults returns the rules.
func (s *Simulator) Faults() []FaultState {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	out := make([]FaultState, 0, len(s.faults.rules))
	for _, r := range s.faults.rules {
		out = append(out, *r)
	}
	return out
}

// hit counts a match and reports whether the rule applies. The caller holds the mutex of the table.
func (r *FaultState) hit() bool {
	r.Matched++
	if r.Matched <= r.Skip || (r.Count > 0 && r.Hits >= r.Count) {
		return false
	}
	switch {
	case r.following > 0:
		r.following--
	case r.Probability > 0 && r.rand.Float64() >= r.Probability:
		return false
	default:
		r.following = max(r.InARow-1, 0)
	}
	r.Hits++
	return true
}

// delay returns how long the rule delays this hit. The caller holds the mutex of the table.
func (r *FaultState) delay() time.Duration {
	d := time.Duration(r.Delay)
	if r.Jitter > 0 {
		d += time.Duration(r.rand.Int64N(int64(r.Jitter)))
	}
	return d
}

func (t *faultTable) onCall(c wire.Call) wire.Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rules {
		if r.Task != "" || (r.Method != "" && !strings.EqualFold(r.Method, c.Verb)) {
			continue
		}
		if ok, _ := path.Match(r.Path, c.Path); r.Path != "" && r.Path != c.Template && !ok {
			continue
		}
		if r.hit() {
			return wire.Fault{
				Delay: r.delay(), Status: r.Status, Message: r.Message, AfterCall: r.AfterCall,
				DropBefore: r.DropBefore, DropAfter: r.DropAfter, CutUpload: r.CutUpload,
			}
		}
	}
	return wire.Fault{}
}

func (t *faultTable) onTask(ctx context.Context, u tasks.UPID) (exit string, err error) {
	f, delay, ok := t.taskRule(u)
	if !ok {
		return "", nil
	}
	if err := t.clock.Sleep(ctx, delay); err != nil {
		return "", err
	}
	if f.Hang {
		<-ctx.Done()
		return "", ctx.Err()
	}
	if f.Fail != "" {
		return "", errors.New(f.Fail)
	}
	return f.FailAfter, nil
}

func (t *faultTable) taskRule(u tasks.UPID) (Fault, time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rules {
		if r.Task == "" || (r.Task != "*" && r.Task != u.Type) || (r.TaskID != "" && r.TaskID != u.ID) {
			continue
		}
		if r.hit() {
			return r.Fault, r.delay(), true
		}
	}
	return Fault{}, 0, false
}

// HostDown powers a host off. Connections to it then fail as specified by how: "refused", "noroute" or "timeout".
func (s *Simulator) HostDown(host, how string) error {
	if text := oneOf(how, "", "refused", "noroute", "timeout"); text != "" {
		return fmt.Errorf("taking host %s down: %s", host, text)
	}
	return s.engine.HostDown(host, how)
}

// HostUp powers a host on and starts its VMs with onboot.
func (s *Simulator) HostUp(host string) error { return s.engine.HostUp(host) }

// ShutdownHost shuts a host down as its administrator would: a stopall task stops its guests, then it powers off.
func (s *Simulator) ShutdownHost(host string) error { return s.engine.ShutdownHost(host) }

// SetBootFails sets whether a host does not boot when it is woken with wakeonlan or rebooted.
func (s *Simulator) SetBootFails(host string, fails bool) error {
	return s.engine.SetBootFails(host, fails)
}

// RemoveHost removes a host that is down from the cluster, as "pvecm delnode" does. Its guests stay listed.
func (s *Simulator) RemoveHost(host string) error { return s.engine.RemoveHost(host) }

// SetMaintenance enables or disables the HA manager's maintenance mode of a host. Guests are not migrated.
func (s *Simulator) SetMaintenance(host string, on bool) error {
	return s.engine.SetMaintenance(host, on)
}

// SetQuorum sets whether the cluster has quorum.
func (s *Simulator) SetQuorum(ok bool) { s.engine.SetQuorum(ok) }

// SetStorageFull sets whether every allocation on a storage fails.
func (s *Simulator) SetStorageFull(storage string, full bool) error {
	return s.engine.SetStorageFull(storage, full)
}

// SetStorageActive sets whether a storage is active on a host. To make a storage late after the power-on of a host, set
// it to inactive before HostUp, and to active later.
func (s *Simulator) SetStorageActive(host, storage string, active bool) error {
	return s.engine.SetStorageActive(host, storage, active)
}

// SetClockSkew sets the offset of the hosts' clocks from real time.
func (s *Simulator) SetClockSkew(d time.Duration) { s.engine.Clock.SetSkew(d) }

// PowerOffGuest powers a VM off as if the guest had shut itself down.
func (s *Simulator) PowerOffGuest(vmid int) error { return s.engine.PowerOffGuest(vmid) }

// SetGuestHealth changes the health of a running VM's guest. Each boot resets it to HealthWell.
func (s *Simulator) SetGuestHealth(vmid int, health Health) error {
	return s.engine.SetGuestHealth(vmid, string(health))
}

// SetHA adds a VM to HA with a requested state ("started", "stopped", "disabled", "ignored"); "" removes it.
func (s *Simulator) SetHA(vmid int, state string) error { return s.engine.SetHA(vmid, state) }

// HAState returns the requested HA state of a VM; false if HA does not manage it.
func (s *Simulator) HAState(vmid int) (string, bool) { return s.engine.HAState(vmid) }

// SetConfigLock sets the "lock:" key of a VM, as a backup or a crash would; "" removes it.
func (s *Simulator) SetConfigLock(vmid int, lock string) error {
	return s.engine.SetConfigLock(vmid, lock)
}

// HoldVMLock acquires the file lock of a VM's config, as a process on the host would, until release is called.
func (s *Simulator) HoldVMLock(ctx context.Context, host string, vmid int) (release func(), err error) {
	return s.engine.HoldGuestLock(ctx, host, vmid)
}

// HoldStorageLock acquires the lock for allocating and freeing volumes of a storage, as another process on the host
// would, until release is called.
func (s *Simulator) HoldStorageLock(ctx context.Context, host, storage string) (release func(), err error) {
	return s.engine.HoldStorageLock(ctx, host, storage)
}

// MigrateGuest moves a VM to another host immediately, with the same visible result as a migration.
func (s *Simulator) MigrateGuest(vmid int, host string) error {
	return s.engine.MigrateGuest(vmid, host)
}

// RestoreCopy creates a VM as if the backup of another VM was restored to a new VMID: it keeps uuid, description and
// tags.
func (s *Simulator) RestoreCopy(vmid, newid int) error { return s.engine.RestoreCopy(vmid, newid) }
