// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"slices"
)

var transient = []error{
	ErrLocked, ErrBusy, ErrUnknownOutcome, ErrConflict, ErrHostUnreachable, ErrUnreachable, ErrNoQuorum, ErrNoTime,
	ErrUnauthorized, // a token that is being rotated
	context.Canceled, context.DeadlineExceeded,
}

// IsTransient reports whether the operation that failed with err may succeed
// when it is retried without any other change. After ErrUnknownOutcome, read
// the current state before retrying. Callers retry: launches in
// internal/instance/launch/retry.go with the rate limiter of
// internal/controllers/nodeclaim/launch, deletions when core calls again after a
// BlockedError, templates in internal/template/reconcile.go.
func IsTransient(err error) bool {
	return slices.ContainsFunc(transient, func(kind error) bool { return errors.Is(err, kind) })
}
