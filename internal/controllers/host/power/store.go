// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// ConfigMapName is the name of the ConfigMap with the records about Hosts that were shut down to
// save energy.
const ConfigMapName = "karpenter-proxmox-power"

// Store reads and writes the records in the ConfigMap. Each key is a Host (see
// inventory.HostName.Key), each value an inventory.Sleep in JSON.
type Store struct {
	// Kube must not be cached: a record that is not read would be lost.
	Kube client.Client
	// Namespace of the ConfigMap.
	Namespace string
	// KubeCluster is the UID of the Kubernetes cluster. Records of another one, for example in a
	// ConfigMap that was copied, are ignored.
	KubeCluster string
}

func (s Store) configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: ConfigMapName}}
}

// read returns the ConfigMap. One that does not exist is empty.
func (s Store) read(ctx context.Context) (*corev1.ConfigMap, error) {
	found := s.configMap()
	if err := s.Kube.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", s.Namespace, ConfigMapName, err)
	}
	return found, nil
}

// Load returns all records. It logs and ignores those that it cannot read.
func (s Store) Load(ctx context.Context) (map[observed.HostName]declared.Sleep, error) {
	found, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	records := map[observed.HostName]declared.Sleep{}
	for _, key := range slices.Sorted(maps.Keys(found.Data)) {
		name, record, err := s.parse(key, found.Data[key])
		if err != nil {
			log.FromContext(ctx).Error(err, "ignoring invalid record about a sleeping host", "ConfigMap", client.ObjectKeyFromObject(found))
			continue
		}
		records[name] = record
	}
	return records, nil
}

// Follow updates the inventory of a process that is not the leader with the records of the
// leader. It has no effect once the process is the leader.
func (s Store) Follow(ctx context.Context, i *inventory.Inventory) error {
	records, err := s.Load(ctx)
	if err != nil {
		return err
	}
	i.SetSleepingOutdated(records)
	return nil
}

func (s Store) parse(key, value string) (observed.HostName, declared.Sleep, error) {
	var record declared.Sleep
	name, err := observed.ParseHostKey(key)
	if err != nil {
		return name, record, err
	}
	if err := json.Unmarshal([]byte(value), &record); err != nil {
		return name, record, fmt.Errorf("key %q: %w", key, err)
	}
	if record.KubeCluster != s.KubeCluster {
		return name, record, fmt.Errorf("key %q: found kubeCluster %q, want %q, the UID of this cluster's namespace kube-system", key, record.KubeCluster, s.KubeCluster)
	}
	return name, record, nil
}

// Put writes the record about a Host; nil removes it.
func (s Store) Put(ctx context.Context, name observed.HostName, record *declared.Sleep) error {
	found, err := s.read(ctx)
	if err != nil {
		return err
	}
	if record == nil {
		delete(found.Data, name.Key())
	} else {
		raw, err := json.Marshal(record)
		if err != nil {
			return fmt.Errorf("encoding the record about host %s: %w", name, err)
		}
		if found.Data == nil {
			found.Data = map[string]string{}
		}
		found.Data[name.Key()] = string(raw)
	}
	write := s.Kube.Update
	if found.ResourceVersion == "" {
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return s.Kube.Create(ctx, o)
		}
	}
	if err := write(ctx, found); err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", s.Namespace, ConfigMapName, err)
	}
	return nil
}
