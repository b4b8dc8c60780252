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

// Record is a file that records that a Kubernetes cluster may have VMs in a lab. The process
// that wrote it holds a lock on the file, so a record that can be locked belongs to a run that
// ended without cleaning up.
type Record struct {
	// Cluster is the ID of the Kubernetes cluster.
	Cluster string
	file    *os.File
}

// NewRecord writes and locks a record. A lab is identified by its URL.
func NewRecord(dir, cluster, lab string) (*Record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating record directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, cluster), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing record: %w", err)
	}
	r := &Record{Cluster: cluster, file: file}
	// Lock before writing: StaleRecords ignores a record that can be locked but has no lab
	// yet.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking record: %w", err)
	}
	if _, err := file.WriteString(lab); err != nil {
		return nil, fmt.Errorf("writing record: %w", err)
	}
	return r, nil
}

// Remove deletes the record after the run was cleaned up.
func (r *Record) Remove() error { return errors.Join(os.Remove(r.file.Name()), r.file.Close()) }

// Release unlocks the record, so a later run cleans up.
func (r *Record) Release() error { return r.file.Close() }

// StaleRecords locks and returns the records of a lab whose runs have ended.
func StaleRecords(dir, lab string) ([]*Record, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, fmt.Errorf("listing records: %w", err)
	}
	var out []*Record
	for _, name := range names {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // removed since it was listed
		}
		content, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(content)) != lab || syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = file.Close() // another lab, or a run that is still active
			continue
		}
		out = append(out, &Record{Cluster: filepath.Base(name), file: file})
	}
	return out, nil
}
