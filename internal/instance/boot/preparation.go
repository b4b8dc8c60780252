// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// PreparationImage renders the boot data of the builder VM of a ProxmoxTemplate and returns
// the ISO image, and the hash of the content of the Secrets. data is the identity, the
// network and the size of the VM.
func (s Source) PreparationImage(ctx context.Context, prepare *v1alpha1.Preparation, data bootdata.Data) (image []byte, hash string, err error) {
	source, err := s.readTemplates(ctx, "spec.prepare", prepare.TemplatesRef, prepare.ValuesRef)
	if err != nil {
		return nil, "", err
	}
	if strings.TrimSpace(source.parts[0].UserData) == "" {
		return nil, "", fmt.Errorf("%s has no key %s: add the commands that prepare the template and power the VM off",
			source.name, bootdata.UserDataFile)
	}
	if data.Kubernetes.RootCA, err = s.rootCA(ctx); err != nil {
		return nil, "", err
	}
	data.Kubernetes.Version, data.Values = s.Version(ctx), source.values
	files, err := source.render(data)
	if err != nil {
		return nil, "", err
	}
	if image, err = files.ISO(); err != nil {
		return nil, "", fmt.Errorf("creating the boot drive: %w", err)
	}
	return image, source.hash(), nil
}

// CheckPreparation renders the boot data for a sample builder VM and returns the hash of
// the content of the Secrets.
func (s Source) CheckPreparation(ctx context.Context, template *v1alpha1.ProxmoxTemplate) (string, error) {
	prepare := template.Spec.Prepare
	data := bootdata.Data{
		Metadata: bootdata.Metadata{
			Hostname: template.Name, InstanceID: fmt.Sprint(v1alpha1.MinVMID), InstanceUUID: string(uuid.NewUUID()),
			Region: "region", Zone: "host", Tags: template.Spec.Tags,
		},
		Resources: bootdata.Resources{CPU: int64(prepare.CPUs()), Memory: int64(prepare.MemoryMiB()) << 20},
	}
	for n := range template.Spec.Network {
		data.Network.Interfaces = append(data.Network.Interfaces, bootdata.Interface{MacAddr: fmt.Sprintf("BC:24:11:00:00:%02X", n)})
	}
	_, hash, err := s.PreparationImage(ctx, prepare, data)
	return hash, err
}
