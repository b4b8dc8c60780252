// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Hash returns a hash of what the boot data of a NodeClass is made of: the content of its
// Secrets and its cloud-init settings. Data that differs between VMs is not part of it,
// and neither are default templates, which a release may change. It returns an empty
// string if the class does not replace Nodes when its boot data changes. It fails if a
// Secret cannot be read.
func (s Source) Hash(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (string, error) {
	switch options := class.Spec.MetadataOptions; {
	case !options.ReplacesOnChange():
		return "", nil
	case options.UsesCloudInitDrive():
		settings, err := s.CloudInit(ctx, class)
		if err != nil {
			return "", err
		}
		return HashCloudInit(settings), nil
	default:
		source, err := s.templates(ctx, options)
		if err != nil {
			return "", err
		}
		return source.hash(), nil
	}
}

// HashCloudInit returns the hash of cloud-init settings.
func HashCloudInit(settings *vmconfig.CloudInit) string { return hashOf(settings) }

func (t templates) hash() string {
	if len(t.parts) != 1 || t.parts[0].Name != "" {
		parts := make([]bootdata.Templates, 0, len(t.parts))
		for _, part := range t.parts {
			parts = append(parts, part.Templates)
		}
		return hashOf(struct {
			Parts  []bootdata.Templates
			Values map[string]string
		}{parts, t.values})
	}
	return hashOf(struct {
		Templates bootdata.Templates
		Values    map[string]string
	}{t.parts[0].Templates, t.values})
}

// hashOf uses a cryptographic hash, because the result is public and the data is not.
func hashOf(data any) string {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // strings and maps of strings
	}
	sum := sha256.Sum256(text)
	return v1alpha1.BootDataHashPrefix + hex.EncodeToString(sum[:16])
}
