// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// failf returns a final error of a launch.
func failf(reason, format string, args ...any) error {
	return &instance.LaunchError{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// finalOrRetry returns a LaunchError if a step's error is final, and the error itself if
// the launch is to be retried. Transient errors become final after LaunchRetryTimeout
// without progress.
func (a *attempt) finalOrRetry(err error) error {
	if _, final := errors.AsType[*instance.LaunchError](err); final || errors.Is(err, instance.ErrNewerVersion) {
		return err
	}
	if proxmox.IsTransient(err) || !isFromProxmox(err) {
		if a.deps.Clock.Since(a.deps.Launches.RecordFailed(string(a.claim.UID), a.deps.Clock.Now())) < a.deps.Settings.LaunchRetryTimeout {
			return err
		}
		return &instance.LaunchError{Reason: v1alpha1.EventLaunchTimeout, Err: err}
	}
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		return &instance.LaunchError{Reason: v1alpha1.EventPermissionMissing, Err: err}
	}
	if errors.Is(err, proxmox.ErrStorageFull) {
		return &instance.LaunchError{Reason: v1alpha1.EventStorageFull, Err: err}
	}
	return &instance.LaunchError{Reason: v1alpha1.EventProxmoxRefused, Err: err}
}

// isFromProxmox reports whether Proxmox refused a request, as opposed to the Kubernetes
// API.
func isFromProxmox(err error) bool {
	var forbidden *proxmox.ForbiddenError
	var invalid *proxmox.InvalidError
	if errors.As(err, &forbidden) || errors.As(err, &invalid) {
		return true
	}
	for _, kind := range []error{
		proxmox.ErrNotFound, proxmox.ErrExists, proxmox.ErrRunning, proxmox.ErrNotRunning, proxmox.ErrProtected, proxmox.ErrRootOnly,
		proxmox.ErrStorageFull, proxmox.ErrTaskCanceled, proxmox.ErrFailed,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
