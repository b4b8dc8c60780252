// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// minDiskSize is the disk of the default instance types.
const minDiskSize v1alpha1.DiskSize = "30G"

// LabConfig describes a user's own Proxmox cluster for the end-to-end tests. It is documented
// in docs/e2e.md.
type LabConfig struct {
	// CloudConfig is the path of a cloud config in the controller's format. A relative path is
	// relative to this file's directory.
	CloudConfig string `json:"cloudConfig"`
	// Region selects an entry of the cloud config. It may be empty if there is only one.
	Region string `json:"region,omitempty"`
	// Template selects the template that VMs are cloned from, by name, tags, or both.
	Template struct {
		Name string   `json:"name,omitempty"`
		Tags []string `json:"tags,omitempty"`
	} `json:"template"`
	// Storage is the storage of the VMs' disks. Empty means the template's storage.
	Storage string `json:"storage,omitempty"`
	// ISOStorage is the storage of boot drives. Empty means the first storage that allows ISO
	// images.
	ISOStorage string `json:"isoStorage,omitempty"`
	// DiskSize is the size of the VMs' disks, at least that of the template and of the
	// instance types.
	DiskSize v1alpha1.DiskSize `json:"diskSize,omitempty"`
	// ResourcePool is the Proxmox resource pool of the VMs.
	ResourcePool string `json:"resourcePool,omitempty"`
	// VMIDs is the range that the tests may use.
	VMIDs struct {
		From int `json:"from"`
		To   int `json:"to"`
	} `json:"vmids"`
	// MaxVMs is the number of VMs that the cluster has capacity for.
	MaxVMs int `json:"maxVMs,omitempty"`
	// NodeAddress is an IP address of this machine that VMs can reach. Without it, no VM
	// becomes a Node.
	NodeAddress string `json:"nodeAddress,omitempty"`
	// Timeout limits how long a test waits for a single change, including boots.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Lab is a user's own Proxmox cluster.
type Lab struct {
	LabConfig
	Cluster Cluster
	API     *API
	// Version is the version of Proxmox VE.
	Version string
	// Hosts are the online hosts that have the template.
	Hosts []string
}

// LoadLab reads a lab file. Its errors name file and field.
func LoadLab(path string) (*Lab, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading lab file: %w", err)
	}
	lab := &Lab{}
	if err := yaml.UnmarshalStrict(content, &lab.LabConfig); err != nil {
		return nil, fmt.Errorf("reading lab file %s: %w", path, err)
	}
	lab.NodeAddress = cmp.Or(os.Getenv("E2E_NODE_ADDRESS"), lab.NodeAddress)
	if err := lab.complete(path); err != nil {
		return nil, fmt.Errorf("reading lab file %s: %w", path, err)
	}
	return lab, nil
}

func (l *Lab) complete(path string) error {
	l.DiskSize = cmp.Or(l.DiskSize, minDiskSize)
	l.MaxVMs = cmp.Or(l.MaxVMs, 2)
	l.Timeout.Duration = cmp.Or(l.Timeout.Duration, 10*time.Minute)
	switch {
	case l.CloudConfig == "":
		return errors.New("cloudConfig: missing: want the path of a cloud config as the controller reads it")
	case l.Template.Name == "" && len(l.Template.Tags) == 0:
		return errors.New("template: missing: want the name or the tags of a Proxmox template")
	case l.VMIDs.From < 100 || l.VMIDs.To < l.VMIDs.From+99:
		return fmt.Errorf("vmids: found %d to %d, want at least a hundred VMIDs that nothing else uses, such as from: 20000, to: 20999", l.VMIDs.From, l.VMIDs.To)
	case !isLargeEnough(l.DiskSize):
		return fmt.Errorf("diskSize: found %s, want at least %s: the instance types have disks of this size", l.DiskSize, minDiskSize)
	case l.NodeAddress != "" && net.ParseIP(l.NodeAddress) == nil:
		return fmt.Errorf("nodeAddress (E2E_NODE_ADDRESS): found %q, want an IP address of this machine that VMs can reach", l.NodeAddress)
	}
	if !filepath.IsAbs(l.CloudConfig) {
		l.CloudConfig = filepath.Join(filepath.Dir(path), l.CloudConfig)
	}
	return l.readCloudConfig()
}

// isLargeEnough reports whether VMs get disks of the size: those of the instance types are the
// minimum.
func isLargeEnough(size v1alpha1.DiskSize) bool {
	bytes, err := size.Bytes()
	minimum, minErr := minDiskSize.Bytes()
	return err == nil && minErr == nil && bytes >= minimum
}

func (l *Lab) readCloudConfig() error {
	cloud, err := proxmox.LoadConfig(l.CloudConfig)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cloud.Clusters, func(c proxmox.ClusterConfig) bool { return l.Region == "" || c.Region == l.Region })
	switch {
	case i < 0:
		return fmt.Errorf("region: found %q, which is not in %s", l.Region, l.CloudConfig)
	case l.Region == "" && len(cloud.Clusters) > 1:
		return fmt.Errorf("region: missing: %s has %d clusters, name one of them", l.CloudConfig, len(cloud.Clusters))
	}
	if l.Cluster, err = clusterOf(cloud.Clusters[i]); err != nil {
		return err
	}
	l.Region = l.Cluster.Region
	if l.API, err = NewAPI(l.Cluster); err != nil {
		return err
	}
	l.API.vmids = func(vmid int) bool { return vmid >= l.VMIDs.From && vmid <= l.VMIDs.To }
	return nil
}

// clusterOf converts an entry of the user's cloud config and reads the token files.
func clusterOf(c proxmox.ClusterConfig) (Cluster, error) {
	out := Cluster{
		Region: c.Region, URLs: c.URLs, CA: c.CA, Insecure: c.Insecure, Fingerprint: strings.Join(c.Fingerprints, ";"),
		TokenID: c.TokenID, TokenSecret: string(c.TokenSecret),
	}
	for path, into := range map[string]*string{c.TokenIDFile: &out.TokenID, c.TokenSecretFile: &out.TokenSecret} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return out, fmt.Errorf("reading token of region %s: %w", c.Region, err)
		}
		*into = strings.TrimSpace(string(content))
	}
	if out.TokenID == "" {
		return out, fmt.Errorf("region %s of the cloud config has a login, want a token: see docs/permissions.md", c.Region)
	}
	return out, nil
}

// Open checks that the cluster is reachable and matches its description.
func (l *Lab) Open(ctx context.Context) error {
	var version struct{ Version, Release string }
	if err := l.API.Call(ctx, http.MethodGet, "/version", nil, &version); err != nil {
		return fmt.Errorf("reading Proxmox version: %w", err)
	}
	l.Version = version.Version
	if major, _, _ := strings.Cut(l.Version, "."); major != "8" && major != "9" {
		return fmt.Errorf("the cluster at %s has version %s, want Proxmox VE 8 or 9", l.Cluster.URLs[0], l.Version)
	}
	up, err := l.API.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("listing hosts: %w", err)
	}
	var guests []struct {
		Node, Name, Tags string
		Template         int
	}
	if err := l.API.Call(ctx, http.MethodGet, "/cluster/resources", map[string][]string{"type": {"vm"}}, &guests); err != nil {
		return fmt.Errorf("listing guests: %w", err)
	}
	for _, guest := range guests {
		tags := strings.FieldsFunc(guest.Tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
		matches := (l.Template.Name == "" || guest.Name == l.Template.Name) &&
			!slices.ContainsFunc(l.Template.Tags, func(tag string) bool { return !slices.Contains(tags, tag) })
		if guest.Template == 1 && up[guest.Node] && matches && !slices.Contains(l.Hosts, guest.Node) {
			l.Hosts = append(l.Hosts, guest.Node)
		}
	}
	if len(l.Hosts) == 0 {
		return fmt.Errorf("template: no online host of %s has a template with name %q and tags %q that is visible to the token",
			l.Region, l.Template.Name, l.Template.Tags)
	}
	slices.Sort(l.Hosts)
	return nil
}

// network configures a pod network on each Node, because a kubelet without one never becomes
// ready. The plug-ins are part of the kubelet's package.
const network = `write_files:
  - path: /etc/cni/net.d/10-e2e.conflist
    permissions: "0644"
    content: |
      {"cniVersion": "1.0.0", "name": "e2e", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24"}}]}
`

// Adapt changes a kit to use the lab's template, storages and resource pool.
func (l *Lab) Adapt(k *Kit) {
	k.Template.Spec = v1alpha1.ProxmoxUnmanagedTemplateSpec{Region: l.Region, TemplateName: l.Template.Name, Tags: l.Template.Tags}
	k.Class.Spec.Region = l.Region
	k.Class.Spec.BootDevice.Size, k.Class.Spec.BootDevice.Storage = l.DiskSize, l.Storage
	k.Class.Spec.MetadataOptions.Storage = l.ISOStorage
	k.Class.Spec.ResourcePool = l.ResourcePool
	k.Templates.StringData["user-data"] = strings.Replace(k.Templates.StringData["user-data"], "write_files:\n", network, 1)
}

// Args returns the controller's flags for the lab.
func (l *Lab) Args() []string {
	return []string{"--proxmox-vmid", fmt.Sprint(l.VMIDs.From), "--proxmox-vmid-max", fmt.Sprint(l.VMIDs.To)}
}

// Cluster is one entry of the controller's cloud config.
type Cluster struct {
	Region      string   `json:"region"`
	URLs        []string `json:"urls"`
	CA          string   `json:"ca,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Insecure    bool     `json:"insecure,omitempty"`
	TokenID     string   `json:"token_id,omitempty"`
	TokenSecret string   `json:"token_secret,omitempty"`
	// Root is used for operations that Proxmox does not allow with a token.
	Root *RootLogin `json:"root,omitempty"`
}

// RootLogin is the root login in the cloud config.
type RootLogin struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// tlsConfig returns how the certificates of the cluster's hosts are verified.
func (c Cluster) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case c.Insecure:
		config.InsecureSkipVerify = true
	case c.Fingerprint != "":
		config.InsecureSkipVerify = true // the fingerprint is checked instead
		known := strings.Split(strings.ToLower(strings.ReplaceAll(c.Fingerprint, ":", "")), ";")
		config.VerifyConnection = func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if !slices.Contains(known, hex.EncodeToString(sum[:])) {
				return errors.New("certificate fingerprint differs from the cloud config")
			}
			return nil
		}
	case c.CA != "":
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(c.CA)) {
			return nil, errors.New("creating Proxmox client: the CA has no certificate")
		}
	}
	return config, nil
}
