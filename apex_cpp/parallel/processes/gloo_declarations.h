#pragma once
// What ProcessGroupGloo.hpp needs of Gloo's headers, which LibTorch does not ship although libtorch_cpu exports their symbols.
// Only names and one base class: everything of Gloo's is held by pointer there. The base class has the virtual functions, in
// the order, of the Gloo that LibTorch 2.11 is built with; nothing here makes an object of it.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous
}  // namespace gloo
