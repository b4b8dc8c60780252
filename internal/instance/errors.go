// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

var (
	// ErrNotPolled means that a Cluster was never polled, or a VM not since it was changed, so nothing is known.
	ErrNotPolled = errors.New("the cluster was never polled")
	// ErrClaimBusy means that another operation on the same Claim is in progress; retry.
	ErrClaimBusy = errors.New("another operation on the NodeClaim is in progress")
	// ErrParked means that the Claim waits for capacity; retry.
	ErrParked = errors.New("waiting for capacity")
	// ErrHostAsleep means that the Host was shut down to save energy and is being woken; retry.
	ErrHostAsleep = errors.New("waiting for the host to wake up")
	// ErrHostPowerUnknown means that it cannot be read whether the Host was shut down to save
	// energy; retry.
	ErrHostPowerUnknown = errors.New("whether the host was shut down to save energy is unknown")
	// ErrStartInProgress means that a VM's start did not end in time; the next poll shows
	// its result.
	ErrStartInProgress = errors.New("the start is still in progress")
	// ErrVMLocked means that a VM is not started, because another task or a crash locked it.
	ErrVMLocked = errors.New("VM is locked")
	// ErrHostStopping means that a Host stops all of its guests, usually to shut down.
	ErrHostStopping = errors.New("the host stops all of its guests")
	// ErrNewerVersion means that a newer controller wrote something that this one cannot
	// read. To guess could create a second VM, or lose one: nothing is changed.
	ErrNewerVersion = errors.New("it was written by a newer controller release; upgrade the controller to that release or later")
)

// LaunchError means that a launch failed and that a retry would fail as well.
type LaunchError struct {
	Reason string
	Err    error
}

func (e *LaunchError) Error() string { return e.Err.Error() }
func (e *LaunchError) Unwrap() error { return e.Err }

// InsufficientCapacityError explains why no VM that the Claim allows can be launched now.
type InsufficientCapacityError struct{ Err error }

func (e *InsufficientCapacityError) Error() string { return e.Err.Error() }
func (e *InsufficientCapacityError) Unwrap() error { return e.Err }

// BlockedError explains why a VM cannot be deleted now. A user has to act, or the
// cause is temporary; the deletion is retried.
type BlockedError struct {
	Reason  string
	Message string
}

func (e *BlockedError) Error() string { return e.Message }

// AbandonedError means that a Claim is finished although its VM was not deleted. It
// explains why, and what is left of the VM.
type AbandonedError struct{ Message string }

func (e *AbandonedError) Error() string { return e.Message }

// IsNotVisible reports whether a VM exists that the token may not read.
func IsNotVisible(err error) bool {
	_, forbidden := errors.AsType[*proxmox.ForbiddenError](err)
	return forbidden
}

// NotVisibleMessage explains what to do if the token may not read a VM, which therefore
// cannot be deleted or adopted.
func NotVisibleMessage(region string, vmid int, done string) string {
	return fmt.Sprintf("the token may not read VM %d of region %s, so it cannot be %s: grant VM.Audit on /vms/%d, move the VM to the token's resource pool, or delete it by hand",
		vmid, region, done, vmid)
}

// IgnoreNotFound returns nil if the error is proxmox.ErrNotFound.
func IgnoreNotFound(err error) error {
	if errors.Is(err, proxmox.ErrNotFound) {
		return nil
	}
	return err
}
