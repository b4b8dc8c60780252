// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/file"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ConfigWatchInterval is the interval at which the configuration files are checked.
const ConfigWatchInterval = 5 * time.Second

// configFile is a file that is read only at startup.
type configFile = file.Watched[struct{}]

// watchConfigFile returns a file with its current content.
func watchConfigFile[T any](path string, load func(path string) (T, error)) *configFile {
	return file.Watch(path, func(path string) (struct{}, error) {
		_, err := load(path)
		return struct{}{}, err
	})
}

// readConfigFiles returns the files with their current content.
func readConfigFiles(o *Options) []*configFile {
	files := []*configFile{watchConfigFile(o.CloudConfig, proxmox.LoadConfig)}
	if o.InstanceTypesFile != "" {
		files = append(files, watchConfigFile(o.InstanceTypesFile, func(path string) (instancetype.Catalog, error) {
			content, err := os.ReadFile(path)
			if err != nil {
				return instancetype.Catalog{}, err
			}
			return instancetype.Parse(content)
		}))
	}
	return files
}

// StopOnChange returns a context that is canceled when the cloud config or the file of
// instance types changes. All components are created from these files, so the
// controller exits, Kubernetes restarts it, and launches in progress are resumed. An
// invalid file is logged and ignored: a typo must not stop a running controller.
func StopOnChange(ctx context.Context, settings Settings, every time.Duration) context.Context {
	ctx, cancel := context.WithCancel(ctx)
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
			for _, file := range settings.files {
				_, changed, err := file.Changed()
				if err != nil {
					log.FromContext(ctx).Error(err, "changed configuration file is invalid, keeping the current one", "path", file.Path)
				}
				if changed {
					log.FromContext(ctx).Info("configuration file changed, exiting to reload", "path", file.Path)
					return
				}
			}
		}
	}()
	return ctx
}
