// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ConfigWatchInterval is the interval at which the configuration files are checked.
const ConfigWatchInterval = 5 * time.Second

// configFile is a file that is read only at startup.
type configFile struct {
	name, path string
	// load returns an error if the file is invalid.
	load    func(path string) error
	content []byte
	// problem is the last error that was logged.
	problem string
}

// readConfigFiles returns the files with their current content.
func readConfigFiles(o *Options) []*configFile {
	files := []*configFile{{name: "cloud config", path: o.CloudConfig, load: func(path string) error {
		_, err := proxmox.LoadConfig(path)
		return err
	}}}
	if o.InstanceTypesFile != "" {
		files = append(files, &configFile{name: "instance types", path: o.InstanceTypesFile, load: func(path string) error {
			_, err := instancetype.Load(path)
			return err
		}})
	}
	for _, file := range files {
		file.content, _ = os.ReadFile(file.path) // Load reports the error
	}
	return files
}

// StopOnChange returns a context that is canceled when the cloud config or the file of
// instance types changes. All components are created from these files, so the
// controller exits, Kubernetes restarts it, and launches in progress are resumed. An
// invalid file is logged and ignored: a typo must not stop a running controller.
func StopOnChange(ctx context.Context, settings Settings, every time.Duration) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	files := settings.files
	go func() {
		defer cancel()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for _, file := range files {
				if file.hasChanged(ctx) {
					log.FromContext(ctx).Info("configuration file changed, exiting to reload", "file", file.name, "path", file.path)
					return
				}
			}
		}
	}()
	return ctx
}

// hasChanged reports whether the file has a different, valid content. It compares the
// content because Kubernetes updates a mounted Secret by replacing a symbolic link.
func (f *configFile) hasChanged(ctx context.Context) bool {
	content, err := os.ReadFile(f.path)
	if err == nil && bytes.Equal(content, f.content) {
		f.problem = ""
		return false
	}
	if err == nil {
		err = f.load(f.path)
	}
	if err == nil {
		return true
	}
	if f.problem != err.Error() { // log each problem once
		f.problem = err.Error()
		log.FromContext(ctx).Error(err, "changed configuration file is invalid, keeping the current one", "file", f.name, "path", f.path)
	}
	return false
}
