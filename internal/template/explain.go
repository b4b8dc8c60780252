// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// stepError is a failure that is described together with its fix.
type stepError struct {
	text string
	err  error
	// mirror is whether another mirror of the image may work.
	mirror bool
}

func (e *stepError) Error() string { return e.text }
func (e *stepError) Unwrap() error { return e.err }

// explain describes which step failed, on which storage or object, and how to fix it.
func explain(err error, location Location, step, storage string) error {
	if err == nil || errors.Is(err, errStillRunning) || errors.Is(err, errSuperseded) || errors.Is(err, context.Canceled) {
		return err
	}
	if _, explained := errors.AsType[*stepError](err); explained {
		return err
	}
	newError := func(format string, args ...any) error {
		return &stepError{text: fmt.Sprintf(format, args...), err: err}
	}
	forbidden, isForbidden := errors.AsType[*proxmox.ForbiddenError](err)
	switch {
	case isForbidden && forbidden.Path != "":
		privilege, _, _ := strings.Cut(forbidden.Privilege, "|")
		return newError("%s: privilege %s is missing on %s; add the privilege to the token's role on %s (find it with: pveum acl list): pveum role modify ROLE --append 1 --privs %q",
			step, forbidden.Privilege, forbidden.Path, forbidden.Path, privilege)
	case isForbidden && missingPool.MatchString(forbidden.Message):
		pool := missingPool.FindStringSubmatch(forbidden.Message)[1]
		return newError("%s: spec.resourcePool %q does not exist; run: pveum pool add %s", step, pool, pool)
	case isForbidden:
		return newError("%s: a privilege is missing (%s); docs/permissions.md lists the required privileges", step, forbidden.Message)
	case errors.Is(err, proxmox.ErrStorageFull):
		return newError("%s: storage %s is full (%v); free space on it, check with: pvesm status --storage %s", step, storage, rootMessage(err), storage)
	case errors.Is(err, proxmox.ErrNoQuorum):
		return newError("%s: the Proxmox cluster has no quorum and rejects changes; bring its hosts back online, check with: pvecm status", step)
	case errors.Is(err, proxmox.ErrHostUnreachable), errors.Is(err, proxmox.ErrUnreachable):
		return newError("%s: host %s is unreachable (%v)", step, location.Host, rootMessage(err))
	}
	return newError("%s: %v", step, rootMessage(err))
}

// joinErrors returns an error whose text contains those of all errors, each once, in one line.
// It returns errStillRunning only if there is no other error, and nil if there is none.
func joinErrors(errs ...error) error {
	isFailure := func(err error) bool { return err != nil && !errors.Is(err, errStillRunning) }
	if slices.ContainsFunc(errs, isFailure) {
		errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return !isFailure(err) })
	}
	var texts []string
	for _, err := range errs {
		if err != nil && !slices.Contains(texts, err.Error()) {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return &stepError{text: strings.Join(texts, "; "), err: errors.Join(errs...)}
}

// rootMessage returns what Proxmox reported, without the context that wraps it.
func rootMessage(err error) string {
	for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(err) {
		err = cause
	}
	return strings.TrimPrefix(err.Error(), proxmox.ErrFailed.Error()+": ")
}

var (
	missingPool      = regexp.MustCompile(`pool '([^']*)' does not exist`)
	checksumMismatch = regexp.MustCompile(`checksum mismatch: got '([^']*)'`)
	httpError        = regexp.MustCompile(`ERROR (\d{3}: .*)\.$`)
	// connectionError matches what wget prints if it cannot connect.
	connectionError = regexp.MustCompile(`\.\.\. failed: (.*)\.$|(unable to resolve host address.*)$|(cannot verify .* certificate.*)$`)
)

// explainDownload describes a failed download from a mirror. The cause is in the task's
// exit status or in its log.
func explainDownload(err error, log []string, desired Desired, location Location, from mirror) error {
	source := desired.Spec.SourceImage
	newError := func(format string, args ...any) *stepError {
		return &stepError{text: fmt.Sprintf("downloading the image: "+format, args...), err: err}
	}
	newMirrorError := func(format string, args ...any) error {
		e := newError(format, args...)
		e.mirror = true
		return e
	}
	if found := checksumMismatch.FindStringSubmatch(err.Error()); found != nil {
		checksum := "checksum"
		if source.ChecksumURL != "" {
			checksum = "checksumURL"
		}
		return newMirrorError("%s does not match spec.sourceImage.%s, its %s is %s; fix %s or %s", from.redacted, checksum, source.ChecksumType, found[1], checksum, from.name)
	}
	for _, line := range slices.Backward(append(log, err.Error())) { // the last attempt of wget counts
		if found := httpError.FindStringSubmatch(line); found != nil {
			return newMirrorError("the server returned %q for %s; fix it, check with: curl -I %s", found[1], from.field(), from.redacted)
		}
		if found := connectionError.FindStringSubmatch(line); found != nil {
			return newMirrorError("host %s cannot reach the server of %s (%s); fix it, check on the host with: curl -I %s", location.Host, from.field(), strings.Join(found[1:], ""), from.redacted)
		}
		if strings.Contains(line, "No space left on device") {
			return newError("storage %s is full; free space on it, check with: pvesm status --storage %s", location.Images, location.Images)
		}
	}
	if forbidden, ok := errors.AsType[*proxmox.ForbiddenError](err); ok && forbidden.Path == "" {
		return newError("a privilege is missing, Datastore.AllocateTemplate on /storage/%s or Sys.AccessNetwork on /nodes/%s; add the privilege to the token's role there (find it with: pveum acl list): pveum role modify ROLE --append 1 --privs PRIVILEGE",
			location.Images, location.Host)
	}
	if errors.Is(err, proxmox.ErrFailed) {
		return newMirrorError("%s: %s", from.redacted, rootMessage(err))
	}
	return explain(err, location, "downloading the image", location.Images)
}
