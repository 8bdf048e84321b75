#!/bin/sh
# build.sh FOLDER: builds kube-apiserver of Kubernetes 1.20.2 in FOLDER/bin, and puts etcd beside it, from Debian 12's
# packages: the source of kubernetes, golang-1.19 and etcd-server. apt checks their signatures. It needs no root and
# installs nothing; its apt lists are its own, because a machine's lists rarely have sources. It takes 8 minutes of CPU.
# JOBS=2 compiles two packages at a time.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
kubernetes=1.20.5+really1.20.2-1.1+deb12u1
. /etc/os-release
test "${VERSION_CODENAME:-}" = bookworm || { echo "build.sh: this is ${PRETTY_NAME:-not Debian}: it needs Debian 12" >&2; exit 1; }

apt_folder=$folder/apt
mkdir -p "$apt_folder/lists/partial" "$apt_folder/cache/archives/partial" "$folder/packages" "$folder/bin"
if test -f /etc/apt/sources.list.d/debian.sources; then
    sources=$apt_folder/debian.sources
    sed 's/^Types: .*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources > "$sources"
else
    sources=$apt_folder/debian.list
    sed -n 's/^deb \(.*\)/deb \1\ndeb-src \1/p' /etc/apt/sources.list > "$sources"
fi
apt() {
    apt-get --quiet --quiet --option Dir::Etc::sourcelist="$sources" --option Dir::Etc::sourceparts=/dev/null \
        --option Dir::State::lists="$apt_folder/lists" --option Dir::Cache="$apt_folder/cache" \
        --option APT::Sandbox::User=root "$@"
}
cd "$folder/packages"
apt update
apt download golang-1.19-go golang-1.19-src etcd-server
apt source --download-only "kubernetes=$kubernetes"
for package in ./*.deb; do dpkg-deb --extract "$package" "$folder/root"; done
cp "$folder/root/usr/bin/etcd" "$folder/bin/"

go=$folder/go/src/k8s.io/kubernetes
rm -rf "$go"
mkdir -p "${go%/*}"
dpkg-source --no-check --extract ./kubernetes_*.dsc "$go"
export GOROOT="$folder/root/usr/lib/go-1.19" GOPATH="$folder/go" GOCACHE="$folder/gocache" HOME="$folder"
export GO111MODULE=off CGO_ENABLED=0 GOFLAGS="-p=${JOBS:-1}" PATH="$folder/root/usr/lib/go-1.19/bin:$PATH"
cd "$go"

# One generated file is not in the source: Kubernetes' own generator writes it. Its report of violations must be the known one.
go build -o "$folder/bin/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
directories=$(grep -rl --include='*.go' '+k8s:openapi-gen=' cmd pkg plugin staging/src/k8s.io |
    grep -vE '^staging/src/k8s.io/(code-generator|sample-apiserver)/|/testdata/|_test\.go$' | xargs -n1 dirname |
    LC_ALL=C sort -u | sed 's|^staging/src/|vendor/|; s|^|k8s.io/kubernetes/|' | paste -sd,)
"$folder/bin/openapi-gen" -i "$directories" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$folder/violations" --output-base "$GOPATH/src"
cmp "$folder/violations" api/api-rules/violation_exceptions.list

version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
go build -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
    -o "$folder/bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
cd "$folder"
chmod -R u+w go
rm -rf go gocache root apt packages violations bin/openapi-gen
"$folder/bin/kube-apiserver" --version
