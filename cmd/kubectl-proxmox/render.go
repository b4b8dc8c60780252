// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
)

// render prints the boot data of a NodeClass.
type render struct {
	cluster   *kubeCluster
	manifests []string
	claim     string
	file      string
	directory string
	iso       string
	version   string
	namespace string
}

func newRender(cluster *kubeCluster) *cobra.Command {
	r := &render{cluster: cluster}
	cmd := &cobra.Command{
		Use:   "render [NODECLASS]",
		Short: "Show the boot data that a node would get",
		Long: `Show the boot data that a node of a ProxmoxNodeClass would get.

Templates and values are read from the cluster, or with -f from manifests without a
cluster. The join token and MAC addresses are samples: no token is created. Everything
else is shown unchanged, including the values of valuesRef: treat the output as a secret.`,
		Example: `  # what a node of this class would get
  kubectl proxmox render default

  # the same with the addresses of this claim
  kubectl proxmox render --nodeclaim default-x7k2p

  # try templates before they are applied
  kubectl proxmox render -f examples/k3s --file user-data`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
		ValidArgsFunction: completeFirst(cluster, classNames),
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&r.manifests, "filename", "f", nil, "manifests to read instead of a cluster: files, or directories of YAML files")
	flags.StringVar(&r.claim, "nodeclaim", "", "render for this NodeClaim instead of a sample")
	flags.StringVar(&r.file, "file", "", "show only one file: user-data, meta-data, network-config or vendor-data")
	flags.StringVarP(&r.directory, "output-dir", "o", "", "write the files to this directory instead of showing them")
	flags.StringVar(&r.iso, "iso", "", "write the ISO image to this file instead of showing the files")
	flags.StringVar(&r.version, "kubernetes-version", "v1.36.3", "Kubernetes version that boot data is rendered for, with -f")
	flags.StringVar(&r.namespace, "system-namespace", "kube-system", "namespace of the ConfigMap kube-root-ca.crt that the controller reads")
	return cmd
}

func (r *render) run(ctx context.Context, args []string, out, notes io.Writer) error {
	reader, version, err := r.source()
	if err != nil {
		return err
	}
	claim, err := r.nodeClaim(ctx, reader)
	if err != nil {
		return err
	}
	class, err := r.nodeClass(ctx, reader, args, claim)
	if err != nil {
		return err
	}
	if class.Spec.MetadataOptions.UsesCloudInitDrive() {
		return fmt.Errorf("ProxmoxNodeClass %s has metadataOptions.type %q: Proxmox generates the boot data; to show it, run on the host of a VM: qm cloudinit dump VMID user",
			class.Name, class.Spec.MetadataOptions.Type)
	}
	if !class.Spec.MetadataOptions.IsRendered() {
		return fmt.Errorf("ProxmoxNodeClass %s has metadataOptions.type %q: its VMs get no boot drive", class.Name, class.Spec.MetadataOptions.Type)
	}
	files, err := boot.Source{Reader: reader, Namespace: r.namespace, Version: boot.FixedVersion(version)}.Preview(ctx, class, claim)
	if err != nil {
		return fmt.Errorf("ProxmoxNodeClass %s: %w", class.Name, err)
	}
	if class.Spec.MetadataOptions.UsesFWCfg() {
		if r.iso != "" {
			return fmt.Errorf("ProxmoxNodeClass %s has metadataOptions.type %q: there is no boot drive, remove --iso", class.Name, class.Spec.MetadataOptions.Type)
		}
		files = bootdata.Files{UserData: files.UserData} // fwcfg passes no other file
	}
	fmt.Fprintf(notes, "# ProxmoxNodeClass %s, user-data is %s; the join token is a sample\n", class.Name, bootdata.FormatOf(files.UserData))
	return r.write(files, out)
}

// source returns the reader of the objects and the Kubernetes version.
func (r *render) source() (client.Reader, string, error) {
	if len(r.manifests) == 0 {
		return r.cluster.connect()
	}
	m, err := readManifests(r.manifests, r.namespace)
	return m, r.version, err
}

func (r *render) nodeClaim(ctx context.Context, reader client.Reader) (*karpv1.NodeClaim, error) {
	if r.claim == "" {
		return nil, nil
	}
	claim := &karpv1.NodeClaim{}
	if err := reader.Get(ctx, client.ObjectKey{Name: r.claim}, claim); err != nil {
		return nil, fmt.Errorf("reading NodeClaim %s: %w", r.claim, err)
	}
	return claim, nil
}

// nodeClass returns the NodeClass of the arguments, of the claim, or the only one in the
// manifests.
func (r *render) nodeClass(ctx context.Context, reader client.Reader, args []string, claim *karpv1.NodeClaim) (*v1alpha1.ProxmoxNodeClass, error) {
	name := ""
	switch m, offline := reader.(*manifests); {
	case len(args) == 1:
		name = args[0]
	case claim != nil && claim.Spec.NodeClassRef != nil:
		name = claim.Spec.NodeClassRef.Name
	case offline && len(m.classes()) == 1:
		name = m.classes()[0]
	case offline:
		return nil, fmt.Errorf("specify a proxmoxnodeclass: the manifests contain %d", len(m.classes()))
	default:
		return nil, errors.New("specify a proxmoxnodeclass, or a NodeClaim with --nodeclaim")
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, class); err != nil {
		return nil, fmt.Errorf("reading ProxmoxNodeClass %s: %w", name, err)
	}
	return class, nil
}

// bootFile is a file of the boot drive.
type bootFile struct {
	name    string
	content []byte
}

func (r *render) write(files bootdata.Files, out io.Writer) error {
	if r.iso != "" {
		image, err := files.ISO()
		if err != nil {
			return err
		}
		return os.WriteFile(r.iso, image, 0o600)
	}
	known := false
	for _, f := range []bootFile{
		{bootdata.UserDataFile, files.UserData}, {bootdata.MetaDataFile, files.MetaData},
		{bootdata.NetworkConfigFile, files.NetworkConfig}, {bootdata.VendorDataFile, files.VendorData},
	} {
		if r.file != "" && r.file != f.name {
			continue
		}
		known = true
		if err := r.writeFile(f, out); err != nil {
			return fmt.Errorf("writing %s: %w", f.name, err)
		}
	}
	if !known {
		return fmt.Errorf("--file is %q: want user-data, meta-data, network-config or vendor-data", r.file)
	}
	return nil
}

func (r *render) writeFile(f bootFile, out io.Writer) error {
	switch {
	case len(f.content) == 0:
		return nil
	case r.directory != "":
		if err := os.MkdirAll(r.directory, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(r.directory, f.name), f.content, 0o600)
	case r.file != "":
		_, err := out.Write(f.content)
		return err
	}
	_, err := fmt.Fprintf(out, "==> %s <==\n%s\n", f.name, f.content)
	return err
}
