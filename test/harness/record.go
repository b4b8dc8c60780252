// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Record says, in a file, that a Kubernetes cluster may hold VMs in a lab. Its file
// is locked while the process lives that wrote it, so that one that can be locked
// tells of a run that ended without cleaning up, however it ended.
type Record struct {
	// Cluster is the id of the Kubernetes cluster.
	Cluster string
	file    *os.File
}

// NewRecord writes one for a lab, which is known by its URL.
func NewRecord(dir, cluster, lab string) (*Record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of records, %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, cluster), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("recording the run, %w", err)
	}
	r := &Record{Cluster: cluster, file: file}
	// The lock comes first: a record that can be locked and has no lab yet is not
	// taken for anything.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking the record, %w", err)
	}
	if _, err := file.WriteString(lab); err != nil {
		return nil, fmt.Errorf("recording the run, %w", err)
	}
	return r, nil
}

// Done forgets the run: nothing is left of it.
func (r *Record) Done() error { return errors.Join(os.Remove(r.file.Name()), r.file.Close()) }

// Keep leaves the record to a later run.
func (r *Record) Keep() error { return r.file.Close() }

// Abandoned takes over the records of a lab whose runs are dead.
func Abandoned(dir, lab string) ([]*Record, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, fmt.Errorf("listing the records, %w", err)
	}
	var out []*Record
	for _, name := range names {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // its run has just ended well
		}
		content, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(content)) != lab || syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = file.Close() // another lab's, or a run that lives
			continue
		}
		out = append(out, &Record{Cluster: filepath.Base(name), file: file})
	}
	return out, nil
}
