// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// WatchSettings returns a Runnable that applies changes of a host settings file within one
// poll interval. If the file is missing or invalid, it logs the error and the last good
// settings remain in effect. It compares the content instead of watching file events,
// because a mounted ConfigMap is replaced by changing symbolic links above the file.
func WatchSettings(i *Inventory, file string) manager.Runnable {
	w := &settingsWatcher{inventory: i, file: file}
	w.content, _ = os.ReadFile(file)
	return w
}

type settingsWatcher struct {
	inventory *Inventory
	file      string
	content   []byte
	lastError string
}

// NeedLeaderElection returns false: every replica reads the file.
func (w *settingsWatcher) NeedLeaderElection() bool { return false }

// Start checks the file once per interval until the context ends.
func (w *settingsWatcher) Start(ctx context.Context) error {
	for {
		timer := w.inventory.options.Clock.NewTimer(w.inventory.options.PollInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
			w.reload()
		}
	}
}

// reload applies the file if it changed.
func (w *settingsWatcher) reload() {
	content, err := os.ReadFile(w.file)
	if err == nil && bytes.Equal(content, w.content) {
		w.lastError = ""
		return
	}
	settings, err := LoadSettings(w.file)
	if err != nil {
		if w.lastError != err.Error() { // log each error once
			w.lastError = err.Error()
			w.inventory.metrics.settingsReloadFailed()
			w.inventory.options.Log.Error(err, "reloading host settings failed, using last good settings", "file", w.file)
		}
		return
	}
	w.content, w.lastError = content, ""
	w.inventory.SetSettings(settings)
	w.inventory.options.Log.Info("reloaded host settings", "file", w.file)
}
